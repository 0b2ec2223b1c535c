"""The smallest cloud that docs/add-a-cloud.md allows: AKS with three resources. It is an exercise that no stack file
can name: tests/infra/test_add_a_cloud.py adds it to the table."""
