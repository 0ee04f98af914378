"""The Kubernetes manifests fit the schemas, and mount what `LOSSFEED_LIMITS` names. No cluster runs them here."""

from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "kubernetes"
DOCUMENTS = [document for file in sorted(FOLDER.glob("*.yaml")) for document in yaml.safe_load_all(file.read_text())]


def of_kind(kind):
    (found,) = [document for document in DOCUMENTS if document["kind"] == kind]
    return found


def made():
    """Every ``batch/v1`` job: as it is, and as a training runtime makes one."""
    yield of_kind("Job")
    for replicated in of_kind("ClusterTrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"]:
        spec = replicated["template"]["spec"]
        # The trainer adds what a job needs to restart.
        pod = {**spec["template"]["spec"], "restartPolicy": "Never"}
        spec = {**spec, "template": {**spec["template"], "spec": pod}}
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]}, "spec": spec}


@pytest.mark.parametrize("job", list(made()), ids=lambda job: job["metadata"]["name"])
def test_jobs_fit_the_schema(job):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    broken = {**job, "spec": {**job["spec"], "tempalte": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("job", list(made()), ids=lambda job: job["metadata"]["name"])
def test_the_pods_annotations_are_where_the_loader_looks(job):
    template = job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (named,) = [variable["value"] for variable in container["env"] if variable["name"] == "LOSSFEED_LIMITS"]
    (mount,) = [mount for mount in container["volumeMounts"] if named.startswith(mount["mountPath"] + "/")]
    assert "subPath" not in mount
    (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == mount["name"]]
    (item,) = volume["downwardAPI"]["items"]
    assert f"{mount['mountPath']}/{item['path']}" == named
    assert item["fieldRef"] == {"fieldPath": "metadata.annotations"}
    keys = {key for key in template["metadata"]["annotations"] if key.startswith("lossfeed.dev/")}
    assert keys and keys <= {"lossfeed.dev/limit", "lossfeed.dev/resize"}


def test_the_train_job_names_the_runtime_and_its_steps_are_the_trainers():
    runtime, job = of_kind("ClusterTrainingRuntime"), of_kind("TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert {document["apiVersion"] for document in (runtime, job)} == {"trainer.kubeflow.org/v1alpha1"}
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert node["name"] == node["template"]["spec"]["template"]["spec"]["containers"][0]["name"] == "node"
