// The custom resource definitions that tests/workloads/test_trainjob.py holds a TrainJob to. Nothing of it is compiled.
module trainyard/local/kubeflow-trainer

go 1.24

require github.com/kubeflow/trainer/v2 v2.0.0
