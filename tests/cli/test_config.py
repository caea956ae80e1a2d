"""config.yaml to objects: what is accepted, what is refused and how, and that nothing is written down twice."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from streamkm import open_documents
from streamkm.cli.config import Override, load_run, open_work, parse_set
from streamkm.cli.schema import SECTIONS
from streamkm.core.exceptions import ConfigError, SourceNotFoundError
from streamkm.estimators.kernel_kmeans import StreamKernelKMeans
from streamkm.estimators.kmeans import StreamKMeans
from streamkm.sketches.options import KernelOptions, Nystroem, SketchOptions
from streamkm.text import FeatureHashing
from tests.tables import cases

TOP = Path(__file__).parents[2]
ROWS = "1 1:0.5 2:1\n2 1:0.25 3:4\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "x.svm").write_text(ROWS)
    return tmp_path


def write(folder, text, name="c.yaml"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(folder, text, *overrides):
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_run(path, [parse_set(override) for override in overrides])
    return str(caught.value).replace(f"{folder}/", "")


def test_text_section_is_the_signature_of_hashing_and_of_opening():
    hashing = inspect.signature(FeatureHashing).parameters
    fields = SECTIONS["text"].model_fields
    for name, parameter in hashing.items():
        default = parameter.default
        assert fields[name].default == (list(default) if isinstance(default, tuple) else default)
    of_the_estimator = {"executor", "memory_limit"}
    opening = set(inspect.signature(open_documents).parameters) - {"X", "hashing", "options"} - of_the_estimator
    assert set(fields) - set(hashing) == opening | {"delimiter", "header", "decode_error"}


def test_a_kernel_section_makes_it_kernel_kmeans(folder):
    path = write(
        folder, DATA + "estimator: {n_clusters: 3, tol: 0, eps: null, refine: 2}\nkernel: {kernel: chi2, eps: 0.2}\n"
    )
    run = load_run(path, [parse_set("kernel.n_landmarks=50")])
    wanted = StreamKernelKMeans(3, tol=0.0, refine=2, kernel="chi2", eps=0.2, n_landmarks=50)
    assert isinstance(run.estimator, StreamKernelKMeans)
    assert run.estimator.get_params() == wanted.get_params()
    flat = "{kernel: poly, degree: 2, gamma_factor: 2.0, landmarks: leverage, landmark_rank: 9}"
    full = StreamKernelKMeans(
        kernel=KernelOptions("poly", degree=2, gamma_factor=2.0), method=Nystroem("leverage", landmark_rank=9)
    )
    assert load_run(write(folder, DATA + f"kernel: {flat}\n")).estimator.get_params() == full.get_params()
    assert isinstance(load_run(write(folder, DATA + "kernel:\n")).estimator, StreamKMeans)
    assert isinstance(load_run(write(folder, DATA + "kernel: {}\n")).estimator, StreamKernelKMeans)
    with_all = write(folder, (TOP / "config.yaml").read_text().replace("examples/data/pendigits", "x"), "all.yaml")
    assert load_run(with_all, [parse_set("kernel.kernel=rbf")]).estimator.n_clusters == 10


@pytest.mark.parametrize("kernel", ["", "kernel: {rank: 5}\n"], ids=["k-means", "kernel k-means"])
def test_a_checkpoint_is_of_the_run_and_not_of_the_estimator(folder, kernel):
    path = write(folder, DATA + "estimator: {n_clusters: 3, checkpoint: kept}\n" + kernel)
    run = load_run(path)
    assert run.checkpoint == "kept"
    assert "checkpoint" not in run.estimator.get_params()
    assert load_run(path, [parse_set("estimator.checkpoint=here")]).checkpoint == "here"
    assert load_run(path, [parse_set("estimator.checkpoint=null")]).checkpoint is None
    assert "unknown key kernel.checkpoint; did you mean estimator.checkpoint?" in refused(
        folder, DATA, "kernel.checkpoint=kept"
    )
    assert "estimator.checkpoint must be a valid string, got 3" in refused(folder, DATA, "estimator.checkpoint=3")


def test_shipped_configuration_has_every_key_and_runs_on_shipped_data():
    import yaml

    text = (TOP / "config.yaml").read_text()
    shipped = yaml.safe_load(text)
    assert shipped["kernel"] is None
    commented = text[text.index("\nkernel:") : text.index("\noutput:")]
    keys = yaml.safe_load("\n".join(re.findall(r"^  #   (\w+: .*)$", commented, re.MULTILINE)))
    assert keys == {name: field.default for name, field in SECTIONS["kernel"].model_fields.items()}
    shipped["kernel"] = keys
    assert {name: set(keys) for name, keys in shipped.items()} == {
        name: set(section.model_fields) for name, section in SECTIONS.items()
    }
    run = load_run(TOP / "config.yaml")
    assert run.data.source.estimated_rows == pytest.approx(7494, rel=0.05)
    assert run.estimator.n_clusters == 10
    assert Path(run.output.directory) == TOP / "out" / "pendigits"
    defaults = StreamKMeans().get_params()
    differing = {name for name, value in run.estimator.get_params().items() if value != defaults[name]}
    assert differing == {
        "n_clusters",
        "random_state",
    }  # the comments there call these two, and no other, not the default


def test_minimal(folder):
    run = load_run(write(folder, "data:\n  path: x.svm\n"))
    assert run.data.source.name.endswith("x.svm")
    assert run.estimator.get_params() == StreamKMeans().get_params()
    assert run.output.model_dump() == {
        "directory": "streamkm-out", "labels": "npy", "report": True, "overwrite": False, "incremental": False,
        "half_life": None,
    }  # fmt: skip


def test_paths_are_relative_to_what_names_them(folder, monkeypatch):
    inner = folder / "con[1]fig"
    inner.mkdir()
    (inner / "a.svm").write_text(ROWS)
    path = write(inner, "data: {path: '*.svm'}\noutput: {directory: res}\n")
    run = load_run(path)
    assert run.data.source.name.endswith("a.svm")
    assert Path(run.output.directory) == inner / "res"
    monkeypatch.chdir(folder)
    run = load_run(path, [parse_set("data.path=x.svm"), parse_set("output.directory=here")])
    assert run.data.source.name == "x.svm"
    assert run.output.directory == "here"
    listed = write(inner, "data: {path: [a.svm, ../x.svm]}\n", "list.yaml")
    assert len(load_run(listed).data.source.paths) == 2


DATA = "data:\n  path: x.svm\n"


@cases(
    "text, wanted",
    [
        ("sketch: signs", "signs"),
        ("{sketch: countsketch, n_components: 64}", SketchOptions("countsketch", 64)),
        ("{sketch: svd, fit_on: all, assign_space: sketch}", SketchOptions("svd", fit_on="all", assign_space="sketch")),
    ],
)
def test_keys_of_the_sketch(folder, text, wanted):
    run = load_run(write(folder, f"data: {{path: x.svm}}\nestimator: {{{text.strip('{}')}}}\n"))
    assert run.estimator.get_params() == StreamKMeans(sketch=wanted).get_params()


@cases(
    "text, message",
    [
        (DATA + "estimator:\n  n_cluster: 5\n", "c.yaml:4: unknown key estimator.n_cluster; did you mean n_clusters?"),
        (DATA + "n_clusters: 5\n", "c.yaml:3: unknown section n_clusters; did you mean estimator.n_clusters?"),
        (DATA + "  metric: cosine\n", "c.yaml:3: unknown key data.metric; did you mean estimator.metric?"),
        (DATA + "zzz: 5\n", "c.yaml:3: unknown section zzz; known: data, text, estimator, kernel, output, cluster"),
        (
            DATA + "output:\n  qqq: 1\n",
            "c.yaml:4: unknown key output.qqq; known: directory, labels, report, overwrite, incremental, half_life",
        ),
        (
            DATA + "estimator:\n\n  # ten\n  n_clusters: ten\n",
            "c.yaml:6: estimator.n_clusters must be a valid integer, got 'ten'",
        ),
        (DATA + "estimator: 5\n", "c.yaml:3: estimator must be a section with keys, got 5"),
        (DATA + "output:\n  report: on\n", "c.yaml:4: output.report must be a valid boolean, got 'on'"),
        (
            DATA + "kernel: {}\nestimator:\n  n_components: 2\n",
            "c.yaml:5: estimator.n_components=2 does not apply to kernel k-means; leave out this key or kernel",
        ),
        ("data:\n  format: npy\n", "c.yaml:1: data.path is missing; give the file or files to read"),
        ("data:\n  path: x.svm\n  path: y.svm\n", "c.yaml:3: path is given twice, first in line 2; leave one"),
        ("", "c.yaml is empty; it needs at least data.path"),
        ("- a\n", "c.yaml:1: needed: sections data, text, estimator, kernel, output, cluster with keys, got ['a']"),
    ],
)
def test_what_is_refused(folder, text, message):
    assert refused(folder, text) == message


@cases(
    "text, start",
    [
        ("data:\n  path: [x.svm\n", "c.yaml:3: not YAML: "),
        ("data: {path: x}\n---\ndata: {path: y}\n", "c.yaml:2: not YAML: "),
        ("data: !!python/object/apply:os.system ['true']\n", "c.yaml:1: not YAML: "),
        (b"data: {path: \xff}\n", "c.yaml: not YAML: unacceptable character #x00ff: invalid start byte"),
        ("[" * 1200, "c.yaml: not YAML: "),
        ("n: " + "9" * 5000, "c.yaml: not YAML: "),
    ],
)
def test_what_is_not_yaml(folder, text, start):
    assert refused(folder, text).startswith(start)


def test_all_problems_are_said_at_once(folder):
    text = "data:\n  path: x.svm\nestimator:\n  n_clusters: x\n  tol: y\nouput: {}\n"
    assert [line.partition(": ")[0] for line in refused(folder, text).splitlines()] == [
        "c.yaml:4",
        "c.yaml:5",
        "c.yaml:6",
    ]


def test_nested_aliases_take_no_time(folder):
    lines = ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, 40)), "text: *a39"]
    assert "unknown section a39" in refused(folder, DATA + "\n".join(lines))


@cases(
    "override, message",
    [
        (
            "estimator.n_clusters=x",
            "--set estimator.n_clusters=x: estimator.n_clusters must be a valid integer, got 'x'",
        ),
        ("n_clusters=5", "--set n_clusters=5: write --set section.key=value, as in --set estimator.n_clusters=50"),
        ("data.path=[a", "--set data.path=[a: not YAML: expected ',' or ']', but got '<stream end>'"),
    ],
)
def test_overrides_that_are_refused(folder, override, message):
    assert refused(folder, DATA, override) == message


def test_without_a_file(folder):
    run = load_run(None, [Override("data.path", f"{folder}/x.svm", "DATA")])
    assert run.output.directory == "streamkm-out"
    with pytest.raises(ConfigError, match=r"^command line: data\.path is missing"):
        load_run(None)


def test_missing_files(folder):
    with pytest.raises(ConfigError, match=r"no\.yaml cannot be read \(No such file"):
        load_run(folder / "no.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_run(folder)
    with pytest.raises(SourceNotFoundError, match=r"y\.svm"):
        load_run(write(folder, "data: {path: y.svm}"))


def test_clusters(folder, monkeypatch):
    assert load_run(write(folder, DATA + "cluster:\n")).cluster is None
    older = "cluster:\n  workers: null\n  threads: 1\n  memory_limit: auto\n  report: null\n"
    assert load_run(write(folder, DATA + older)).cluster is None
    older = load_run(write(folder, f"{DATA}{older}  scheduler: tcp://x:1\n")).cluster
    assert older == "tcp://x:1"
    monkeypatch.chdir(folder)
    run = open_work(["x.svm"], [parse_set("cluster.scheduler=tcp://x:1"), parse_set("data.n_features=7")])
    assert run.cluster == "tcp://x:1"
    assert run.data.source.n_features == 7
    assert run.data.source.name == f"{folder}/x.svm"  # workers may have other current directories
    assert open_work(["x.svm"]).cluster is None


CLUSTER = DATA + "cluster:\n  "


@cases(
    "text, message",
    [
        (CLUSTER + "workers: 2\n", "c.yaml:4: unknown key cluster.workers"),
        (
            CLUSTER + "scheduler: tcp://x:1\nestimator:\n  executor: 3\n",
            "c.yaml:3: cluster and estimator.executor=3 exclude each other; leave one out",
        ),
    ],
)
def test_clusters_that_cannot_be(folder, text, message):
    assert refused(folder, text).startswith(message)


def test_byte_order_mark(folder):
    assert load_run(write(folder, b"\xef\xbb\xbf" + DATA.encode())).estimator.n_clusters == 8
