"""Addresses of data: a stack's preview, the dataset Job and `trainyard upload` read the same ones, or refuse them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from cli import CommandError, upload
from infra.config import ConfigError, StackConfig
from infra.parse import parse
from tests.trainer.toy import apart
from trainer.config import addresses
from trainer.data.sources import find, opened
from trainer.errors import UserError
from workloads.dataset import prepare_command


def previewed(*inputs: str) -> StackConfig:
    return parse({"cluster": {"context": "x"}, "dataset": {"input": list(inputs)}}, "test")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("arn:aws:s3:eu-west-1:123456789012:accesspoint/text/a.txt", "is no address that is read"),
        ("s3//bucket/a.txt", "write s3://bucket/a.txt"),
        ("S3;//bucket/a.txt", "write s3://bucket/a.txt"),
        ("s3:///bucket/a.txt", "names nothing"),
        ("me@host:corpus/a.txt", "is no address that is read"),
        ("C:/corpus", "is no address that is read"),
        ("bucket.s3.eu-west-1.amazonaws.com/a.txt", "write https://bucket.s3"),
        ("storage.googleapis.com/bucket/a.txt", "write https://storage"),
        ("huggingface.co/datasets/o/n", "write https://huggingface.co"),
        ("www.example.com/a.txt", "write https://www"),
        ("storage.cloud.google.com/bucket/a.txt", "write https://storage"),
        ("raw.githubusercontent.com/o/n/main/a.txt", "write https://raw"),
        ("kaggle.com/datasets/o/n", "write https://kaggle"),
        ("http://localhost:9000/bucket/a.txt", "names this machine, and a pod takes itself for it"),
        ("https://me@127.0.0.1/a.txt", "names this machine"),
        ("$HOME/a.txt", "a stack file is no shell"),
        ("${DATA}/a.txt", "a stack file is no shell"),
        ("//server/share", "is not on the shared volume"),
        ("~/corpus", "`trainyard upload ~/corpus` brings it there"),
        ("/home/me/corpus", "is not on the shared volume, and pods see no other files"),
        ("file:///home/me/corpus", "`trainyard upload /home/me/corpus`"),
        ("../corpus", "is not on the shared volume"),
        ("corpus/../../etc", "is not on the shared volume"),
        ("/database/x", "is not on the shared volume"),
        ("C:\\texts\\a.txt", "is not on the shared volume"),
        ("hf:/home/me/folder", "is not on the shared volume"),
        ("az://container/a.txt", "az:// is not read; allowed: s3, gs, https, http, hf:NAME"),
    ],
)
def test_what_no_pod_can_read_is_refused_at_preview(given: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        previewed("sample", given)
    (line,) = caught.value.lines
    assert line.startswith("dataset.input.1: ")
    assert told in line


@pytest.mark.parametrize(
    ("given", "job"),
    [
        ("arn:aws:s3:::bucket/a.txt", "s3://bucket/a.txt"),
        ("arn:aws-cn:s3:::bucket/folder/", "s3://bucket/folder/"),
        ("ARN:aws-us-gov:s3:::bucket/*.jsonl", "s3://bucket/*.jsonl"),
        ("https://Me:Secret@Host.Example/a.txt", "https://Me:Secret@host.example/a.txt"),
        ("./notes:2024.txt", "/data/notes:2024.txt"),
        ("s3/a.txt", "/data/s3/a.txt"),
        ("me@home/a.txt", "/data/me@home/a.txt"),
        ("S3://bucket/A.txt", "s3://bucket/A.txt"),
        ("s3a://bucket/folder/", "s3://bucket/folder/"),
        ("gcs://bucket/*.jsonl", "gs://bucket/*.jsonl"),
        ("HTTPS://Host.Example/A.txt?key=Z", "https://host.example/A.txt?key=Z"),
        (" https://host/a.txt ", "https://host/a.txt"),
        ("hf:stanfordnlp/imdb", "hf:stanfordnlp/imdb"),
        ("HF:wikitext/wikitext-2-raw-v1:train", "hf:wikitext/wikitext-2-raw-v1:train"),
        ("sample", "sample"),
        ("corpus/", "/data/corpus"),
        ("/data/corpus/a b.txt", "/data/corpus/a b.txt"),
        ("file:///data/corpus", "/data/corpus"),
        ("file://localhost/data/corpus", "/data/corpus"),
        ("file:///data/my%20corpus", "/data/my corpus"),
        ("https://github.com/o/n/blob/main/a.txt?raw=true", "https://github.com/o/n/blob/main/a.txt?raw=true"),
        (
            "https://huggingface.co/datasets/o/n/resolve/main/a.txt",
            "https://huggingface.co/datasets/o/n/resolve/main/a.txt",
        ),
        ("2024:notes.txt", "/data/2024:notes.txt"),
    ],
)
def test_each_spelling_reaches_the_job_as_one_that_it_reads(given: str, job: str) -> None:
    config = previewed(given)
    assert prepare_command(config.training, config.dataset, "/data/out")[2] == job
    assert addresses.address(config.dataset.input[0]) == config.dataset.input[0]


def test_the_grant_to_read_a_bucket_follows_from_every_spelling() -> None:
    assert previewed("S3A://bucket/x").dataset.buckets("s3") == ["bucket"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("papers/paper.PDF", ".pdf files are not read; unpack or convert it"),
        ("https://host/texts.tar.gz?download=1", ".tar files are not read; unpack or convert it"),
        ("s3:bucket/a.txt", "lacks slashes; write s3://bucket/a.txt"),
        ("gs:/bucket/a.txt", "lacks slashes; write gs://bucket/a.txt"),
        ("s3://", "names nothing"),
        ("  ", "names nothing"),
        ("HF:", "names nothing"),
        ("file://data/corpus", "names the server 'data', which file:// does not reach; write file:///PATH"),
        ("s3://b*/a.txt", "'b*' is no name of a bucket"),
        ("s3://bucket/a.txt?versionId=3", "ends in a query, which s3:// has not; leave out ?versionId=3"),
        ("hf://datasets/stanfordnlp/imdb@main/plain_text", "write hf:stanfordnlp/imdb"),
        ("hf//datasets/stanfordnlp/imdb", "write hf:stanfordnlp/imdb"),
        ("hf:datasets/stanfordnlp/imdb", "write hf:stanfordnlp/imdb"),
        ("hf:https://huggingface.co/datasets/stanfordnlp/imdb", "write hf:stanfordnlp/imdb"),
        ("hf:stanfordnlp/imdb/plain_text@refs/convert/parquet", "write hf:stanfordnlp/imdb/plain_text"),
        ("https://huggingface.co/datasets/imdb/viewer", "a web page about the data; write hf:imdb"),
        ("https://hf.co/datasets/o/n/tree/main/data#files", "a web page about the data; write hf:o/n"),
        ("https://www.github.com/o/n/blob/main/a.txt?plain=1", "write https://github.com/o/n/raw/main/a.txt"),
        (
            "https://huggingface.co/datasets/o/n/blob/main/a.txt",
            "write https://huggingface.co/datasets/o/n/resolve/main/a.txt",
        ),
        ("https://www.kaggle.com/datasets/o/n", "a web page about the data; download them, and `trainyard upload`"),
        ("hf:stanfordnlp/imdb:train[:10%]", "write hf:stanfordnlp/imdb:train"),
        ("s3://s3.eu-west-1.amazonaws.com/bucket/a.txt", "is no name of a bucket"),
        ("gs://bucket/a.jsonl#1360887697105000", "leave out #1360887697105000"),
        ("file:/data/corpus", "lacks slashes; write file:///data/corpus"),
        ("file//data/corpus", "lacks the colon of an address; write file:///data/corpus"),
    ],
)
def test_what_one_reader_refuses_the_others_refuse_in_the_same_words(given: str, said: str) -> None:
    with pytest.raises(ConfigError) as by_preview:
        previewed(given)
    (line,) = by_preview.value.lines
    assert line.startswith("dataset.input.0: ")
    with pytest.raises(UserError) as by_job:
        find([given])
    for error in (line, str(by_job.value)):
        assert said in error
        if advised := re.search(r"write ((\w+://|hf:)\S+)", error):
            assert addresses.address(advised[1]), "an address that a message advises is accepted"
            assert advised[1] in said or "write" not in said
    with pytest.raises(CommandError, match=r"FROM: missing|: an address, not a path|: no such file or folder"):
        upload.upload(given)


def test_questions_have_the_same_reader() -> None:
    asked = {"train": "S3://bucket/train.json", "validation": "/home/me/dev.json"}
    with pytest.raises(ConfigError) as caught:
        parse(
            {
                "cluster": {"context": "x"},
                "training": {"task": "question_answering", "questionAnswering": asked},
            },
            "test",
        )
    assert [line.partition(":")[0] for line in caught.value.lines] == ["training.questionAnswering.validation"]


@pytest.fixture
def public(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An emulated S3 with a public bucket, as the environment of one who has no credentials."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    there = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    client: Any = boto3.client("s3", endpoint_url=there, **keys)
    client.create_bucket(Bucket="texts", ACL="public-read")
    for name in ("corpus/a.txt", "corpus/b.rst", "corpus/skipped.html"):
        client.put_object(Bucket="texts", Key=name, Body=b"public text", ACL="public-read")
    nobody = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path), "AWS_DEFAULT_REGION": "us-east-1"}
    yield {"AWS_ENDPOINT_URL": there, **nobody}
    server.stop()


def read_all(environment: dict[str, str], specs: list[str]) -> dict[str, list[bytes]]:
    """In a process of its own: s3fs keeps sessions."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    read: dict[str, list[bytes]] = {spec: [] for spec in specs}
    for spec in specs:
        for source in find([spec]):
            with opened(source) as file:
                read[spec].append(file.read())
    return read


def test_a_public_bucket_is_read_without_credentials_by_the_job_as_by_upload(public: dict[str, str]) -> None:
    files = {"s3://texts/corpus": 2, "S3A://texts/corpus/": 2, "s3://texts/corpus/a.txt": 1, "s3://texts/*/a.*": 1}
    found = apart(read_all, public, list(files))
    assert found == {spec: [b"public text"] * number for spec, number in files.items()}
