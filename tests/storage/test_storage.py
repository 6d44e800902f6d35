"""Stored values: the same after a round trip, valid by the published schema, and refused in one sentence otherwise."""

import copy
import hashlib
import json
import os
import pickle
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smp_advisor as smpa
from scripts.pages.stored_values import json_schema
from smp_advisor import load, save
from smp_advisor.errors import StorageError
from smp_advisor.libraries.library import libraries
from smp_advisor.session.written import VERSION, as_text, from_text
from tests.deferred import Deferred

jsonschema = Deferred("jsonschema")

P4D = "ml.p4d.24xlarge"
REQUESTS = {
    "auto": ("1.3B", P4D, {"instance_count": 2, "tokens": "20B"}),
    "smp-v1": ("10B", P4D, {"instance_count": 4, "library": "smp-v1", "microbatches": 4, "sequence_length": 512}),
    "adapter": ("llama-3-8b", "ml.g5.48xlarge", {"adapter": smpa.Adapter(rank=8), "sequence_length": 2048}),
    "clusters": ("1.3B", ["ml.g5.48xlarge", P4D], {"instance_count": "smallest", "tokens": "20B", "library": "fsdp"}),
    "own hardware": (
        "350M",
        smpa.Cluster.custom(
            gpu="X1",
            usable_gpu_memory_gib=40,
            peak_tflops=300,
            gpus_per_node=8,
            nodes=1,
            intra_node_gb_per_s=600,
            inter_node_gbps=0,
        ),
        {"library": "ddp", "sequence_length": 512},
    ),
}


@pytest.fixture(scope="module", params=REQUESTS)
def advice(request):
    model, cluster, settings = REQUESTS[request.param]
    return smpa.advise(model, cluster, **settings)


@pytest.mark.slow
def test_a_stored_value_is_the_same(advice, tmp_path):
    save(advice, tmp_path / "advice.json")
    restored = load(tmp_path / "advice.json")
    assert restored.recommended == advice.recommended
    assert str(restored) == str(advice)
    if not advice.cluster.instance.custom:
        assert restored.cell() == advice.cell()
    assert restored.alternatives.equals(advice.alternatives)
    assert restored.ladder(1) == advice.ladder(1)
    assert restored.sizes == advice.sizes
    jsonschema.validate(json.loads((tmp_path / "advice.json").read_text()), json_schema())
    for value in (advice.model, advice.job, advice.cluster, advice.plan, advice.estimate):
        assert from_text(as_text(value))[0] == value
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value


def test_the_plan_on_screen_is_stored(tmp_path):
    advice = smpa.advise("1.3B", P4D, library="fsdp", tokens="20B")
    alternative = advice.adopt(1)
    advice.move(batch_size=2)
    save(advice, tmp_path / "advice.json")
    restored = load(tmp_path / "advice.json")
    assert restored == advice == pickle.loads(pickle.dumps(advice))
    assert alternative
    assert (restored.plan, restored.job, restored.estimate) == (advice.plan, advice.job, advice.estimate)
    assert str(restored.compare()) == str(advice.compare())
    assert restored.undo()
    assert restored.plan == advice.recommended.plan
    jsonschema.validate(json.loads((tmp_path / "advice.json").read_text()), json_schema())


def test_plans_of_every_library_are_stored_and_pickles_are_small():
    model, cluster = smpa.Model.from_parameters("350M", family="gpt2"), smpa.Cluster("ml.g5.xlarge")
    for record in libraries():
        plan = smpa.Plan(library=record.name)
        value = smpa.estimate(model, cluster, smpa.Job(sequence_length=512, precision=plan.precision), plan)
        for stored in (plan, value):
            assert from_text(as_text(stored))[0] == pickle.loads(pickle.dumps(stored)) == stored

    advice = smpa.advise("10B", P4D, instance_count=16, library="smp-v2")
    assert len(pickle.dumps(advice)) < 300_000
    for number in range(20):
        advice.move(batch_size=1 + number % 2)
    assert len(pickle.dumps(advice)) < 1_000_000


def test_stored_advice_can_be_asked_again(tmp_path):
    advice = smpa.advise("350M", P4D, library="fsdp", sequence_length=512, tokens="1B")
    learned = advice.calibrate(step_seconds=1.2 * advice.estimate.step_seconds)
    save(learned, tmp_path / "advice.json")
    restored = load(tmp_path / "advice.json")
    assert restored.job.calibration == learned.job.calibration
    assert restored.again().plan == learned.again().plan
    counts = (1, 2)
    assert restored.compare_clusters(counts=counts) == learned.compare_clusters(counts=counts)
    restored.change(sequence_length=256)
    assert restored.job.sequence_length == 256


def test_the_version_changes_with_the_fields():
    """A field that is added, renamed or of another type makes another format: raise VERSION, and write the digest."""
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    form = {name: part.get("properties", part.get("enum")) for name, part in schema["$defs"].items()}
    for fields in form.values():
        for field in fields.values() if isinstance(fields, dict) else ():
            field.pop("default", None)  # it may change
    digest = hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()[:16]
    assert f"{VERSION} {digest}" == Path(__file__).with_name("format.txt").read_text().strip()


def test_files_of_earlier_forms_are_read_or_refused_with_a_remedy():
    """Three forms had the number 1. What is refused has other fields today."""

    def outcome(path: Path) -> str:
        try:
            return type(load(path)).__name__
        except StorageError as error:
            return str(error)

    kinds = {"SmpV1Plan", "Estimate", "Job", "Model"}
    outcomes = {path.stem: outcome(path) for path in (Path(__file__).parent / "earlier").glob("*.json")}
    for name, text in outcomes.items():
        assert text in kinds or re.search(r"written by smp_advisor \S+, cannot be read by .* Make it again", text), name
    assert {"SmpV1Plan", "Job"} <= set(outcomes.values())
    assert load(Path(__file__).parent / "earlier/plan_1.json").batch_size == 40
    advice = smpa.advise("1.3B", P4D, library="fsdp")
    document = json.loads(as_text(advice.recommended)) | {"version": 2}
    for step in document["value"]["steps"]:
        step["figures"] = [["memory needed with", "9.0 GiB"]]
    assert from_text(json.dumps(document))[0] == advice.recommended


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "no stored value"),
        ('{"format": "smp-advisor", "version": 5, "value": {}}', "version 5 .* reads version 4"),
        ('{"format": "smp-advisor", "version": 4, "kind": "Step", "value": {}}', "holds no Advice"),
        ('{"format": "smp-advisor", "version": 4, "kind": "Cluster", "value": {}}', "not valid at instance"),
    ],
)
def test_other_texts_are_refused(text, reason):
    with pytest.raises(StorageError, match=reason):
        from_text(text)


def test_other_values_and_places_are_refused(tmp_path):
    for value in (3, {"type": "Plan"}, json_schema, smpa):
        with pytest.raises(StorageError, match="cannot be stored"):
            save(value, tmp_path / "value.json")
    plan = smpa.Plan(library="ddp")
    with pytest.raises(StorageError, match="cannot be written"):
        save(plan, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        save(plan, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link.json").symlink_to(tmp_path / "plan.json")
    save(plan, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load(tmp_path / "plan.json") == plan


def test_a_full_disk_leaves_the_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    save(smpa.Plan(library="ddp"), path)
    path.chmod(0o640)
    before = path.read_text()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(StorageError, match="No space left"):
            save(smpa.Plan(library="fsdp"), path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
    save(smpa.Plan(library="fsdp"), path)
    assert path.stat().st_mode & 0o777 == 0o640


def _places(value, place=()):
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(deeper for key, part in inner for deeper in _places(part, (*place, key)))]


SMALL = json.loads(as_text(smpa.Model.from_shape(layers=2, hidden=64, heads=2, vocab=100)))
PLACES = [place for place in _places(SMALL) if place]
VALUES = [None, True, -1, 10**30, 1e308, "inf", "text", [], {}, [[]], {"type": "Plan"}, {"type": 3}]


@pytest.mark.parametrize(
    "place", [("cluster", "instance", "gpus"), ("ranked", 0), ("cluster", "nodes"), ("scores", "headroom", 0)]
)
def test_alternatives_with_numbers_without_bounds_are_refused_or_read(place, tmp_path):
    save(smpa.advise("350M", P4D, library="ddp", sequence_length=512), tmp_path / "advice.json")
    document = json.loads((tmp_path / "advice.json").read_text())
    target = document["value"]["result"]
    for key in place[:-1]:
        target = target[key]
    for number in (10**29, -1, 10**400):
        target[place[-1]] = number
        with suppress(StorageError):
            from_text(json.dumps(document))


@given(place=st.sampled_from(PLACES), value=st.sampled_from(VALUES), remove=st.booleans())
def test_a_changed_file_is_refused_or_is_another_valid_value(place, value, remove):
    changed = copy.deepcopy(SMALL)
    target = changed
    for key in place[:-1]:
        target = target[key]
    if remove:
        del target[place[-1]]
    else:
        target[place[-1]] = value
    try:
        restored, _ = from_text(json.dumps(changed))
    except StorageError:
        return
    assert from_text(as_text(restored))[0] == restored


def test_reports_are_complete_pages_without_scripts(tmp_path):
    model = smpa.Model.from_shape(layers=2, hidden=256, heads=4, vocab=1000, name="<script>`*x*`</script>")
    advice = smpa.advise(model, P4D, library="ddp", sequence_length=128, tokens="1M")
    advice.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "data:image" not in page  # alternatives, memory and time are tables
    assert page.count("█") > 10
    assert "job_name = " in page  # the cell, in the form of the installed SDK
    assert "Memory per GPU" in page


def test_two_advices_are_compared(tmp_path):
    advice = smpa.advise("350M", P4D, library="ddp", sequence_length=512, tokens="1B")
    advice.save(tmp_path / "before.json")
    later = smpa.advise("350M", P4D, instance_count=2, library="ddp", sequence_length=512, tokens="1B")
    difference = later.diff(load(tmp_path / "before.json"))
    assert any(row.label == "Cluster" and row.differs for row in difference.settings)
    assert difference.summary.startswith("1 x ml.p4d.24xlarge → 2 x ml.p4d.24xlarge; Global batch")
    assert "hours" in difference.summary
    with pytest.raises(smpa.errors.AdvisorError, match="requires for advice an Advice"):
        later.diff(later.plan)
