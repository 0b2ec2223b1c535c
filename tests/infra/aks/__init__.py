"""A cloud as docs/add-a-cloud.md describes it, as small as one can be: AKS with three resources. An exercise, which no
stack file can name: tests/infra/test_add_a_cloud.py adds it to the table."""
