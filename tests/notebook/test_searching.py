"""A changed request is searched in place: with progress, cancel, pins, and ways out where nothing fits."""

import json
import re
from html import unescape
from threading import Event

import pytest

from smp_advisor import Cluster, Job, advise
from smp_advisor.advice.request import Request
from smp_advisor.errors import AdvisorError, NoPlanFitsError, PlanError
from smp_advisor.notebook.advisor import Advisor
from smp_advisor.notebook.display import changed_line
from smp_advisor.notebook.shown import ProgressDisplay
from smp_advisor.notebook.workload_fields import changes_of, workload_fields
from smp_advisor.session.control_state import changed, pins_of
from smp_advisor.session.settings import settings_of
from smp_advisor.workload import Adapter

P4D = "ml.p4d.24xlarge"


@pytest.fixture(scope="module")
def source():
    return advise("1.3B", P4D, instance_count=2, library="fsdp", sequence_length=512).recommended


@pytest.fixture
def advisor(source, sent):
    result = Advisor(source)
    result.messages = sent
    return result


def ask(advisor, **content):
    advisor._on_message(advisor, {"kind": "search", "id": "v-search-1", "workload": {}, **content}, [])
    advisor._searching.join()


def search(advisor, **workload):
    texts = {field["name"]: field["value"] for field in advisor.recommendation["workload"]}
    ask(advisor, workload={**texts, **workload})
    return [message for message in advisor.messages if message["kind"] == "searched"][-1]


def test_a_changed_workload_is_searched_in_place_and_undone(advisor):
    answer = search(advisor, instance_count="4", sequence_length="1,024")
    assert (answer["id"], answer["problem"]) == ("v-search-1", "")
    assert (advisor.advice.cluster.nodes, advisor.advice.job.sequence_length) == (4, 1024)
    assert advisor.recommendation["title"].endswith("4 × ml.p4d.24xlarge")
    summary = advisor.state["summary"]
    assert summary.startswith("2 x ml.p4d.24xlarge → 4 x ml.p4d.24xlarge; Tokens per sample 512 → 1,024; ")
    advisor.advice.undo()
    assert (advisor.advice.cluster.nodes, advisor.advice.job.sequence_length) == (2, 512)
    assert {f["name"]: f["value"] for f in advisor.recommendation["workload"]}["instance_count"] == "2"


def test_pins_of_the_page_are_those_of_python_and_stay(advisor):
    advisor._on_message(advisor, {"kind": "act", "id": "v:1", "action": "pin", "value": "batch_size"}, [])
    advisor.advice.pin(activation_checkpointing="each")
    assert advisor.state["pins"] == ["batch_size", "activation_checkpointing"]
    pinned = dict(advisor.advice.pins)
    search(advisor, sequence_length="256")
    assert {name: advisor.state["settings"][name] for name in pinned} == pinned
    advisor._on_message(advisor, {"kind": "act", "id": "v:2", "action": "pin", "value": "batch_size"}, [])
    assert advisor.state["pins"] == ["activation_checkpointing"]
    advisor.advice.unpin()
    assert advisor.state["pins"] == []
    with pytest.raises(PlanError, match="has no control 'warp'"):
        advisor.advice.pin("warp")


def test_the_rest_is_searched_with_a_pinned_setting(advisor):
    advisor.advice.pin(batch_size=1)
    ask(advisor, again=True)
    assert advisor.plan.batch_size == 1
    assert "batch size 1 pinned" in advisor.state["summary"]


def test_where_nothing_fits_the_plan_stays_and_ways_out_are_offered(advisor):
    before = advisor.plan
    answer = search(advisor, model="70B", instance_count="1")
    assert "fits" in answer["problem"]
    assert advisor.plan == before
    nodes = next(way for way in answer["ways"] if set(way["workload"]) == {"instance_count"})
    assert search(advisor, model="70B", **nodes["workload"])["problem"] == ""
    with pytest.raises(NoPlanFitsError):
        advisor.advice.change(instance_count=1)
    ways = [way["text"].partition(" ")[0] for way in answer["ways"]]
    assert "GiB per GPU" in answer["ways"][0]["note"]
    search(advisor, model="70B", instance_count="1")  # no field shows this one: it is searched by its position
    way = ways.index("QLoRA" if "QLoRA" in ways else "LoRA")
    ask(advisor, workload={"model": "70B", "instance_count": "1"}, way=way)
    assert advisor.advice.job.adapter is not None
    assert "LoRA" in advisor.state["summary"]


def test_a_change_that_fits_has_its_line():
    assert changed_line("%smp_advise 7B --lora -n=4", {"adapter": Adapter(rank=8), "instance_count": 2}) == (
        "%smp_advise 7B --lora 8 --count 2"
    )
    quantized = {"adapter": Adapter(rank=8, base_bits=4)}
    assert changed_line("%smp_advise 7B --lora 8", quantized) == "%smp_advise 7B --qlora 8"


@pytest.mark.slow
def test_changes_of_the_workload_make_the_plan_on_screen_fit_with_its_settings(sent):
    advisor = Advisor(advise("10B", P4D, instance_count=16, library="smp-v1", family="gpt2", sequence_length=512))
    advisor.move(batch_size=384)
    settings = advisor.advice.controls.settings
    advisor._on_message(advisor, {"kind": "panel", "id": "v:1", "name": "fit", "settings": settings}, [])
    html = sent[-1]["data"]["html"]
    assert re.findall(r"<b>([^<]*)</b>", html) == ["A sequence of 128 tokens", "16 × ml.p4de.24xlarge"]
    deeds = [json.loads(unescape(deed)) for deed in re.findall(r'data-smp-do="([^"]*)"', html)]
    content = {"again": True, "settings": settings, "workload": deeds[1]["search"]}
    assert [deed["fit"] for deed in deeds] == [0, 1]
    ask(advisor, **content, fit=1)
    assert (advisor.estimate.fits, advisor.plan.batch_size) == (True, 384)
    assert f'16 × ml.p4de.24xlarge</b><span class="smp-note">{advisor.estimate.needed_gib:.1f} of' in html
    assert f"{advisor.estimate.needed_gib:.1f} of" in advisor.state["summary"]
    assert advisor.state["pins"] == []
    ask(advisor, **content, fit=9)
    assert "choose again" in sent[-1]["problem"]


def test_a_text_that_cannot_be_read_is_refused_in_a_sentence(advisor):
    assert search(advisor, sequence_length="long")["problem"].startswith("Sequence: 'long' is not a number")
    assert search(advisor, model="")["problem"].startswith("The model is missing")
    assert search(advisor)["problem"] == ""
    assert changes_of(advisor.advice.recommended, {"precision": "auto", "tokens": ""}) == {}


def test_a_search_reports_the_time_left_and_ends_without_a_result_once_canceled(advisor, monkeypatch):
    reached, go = Event(), Event()

    def run(*_, on_progress):
        on_progress(0, 4, "0 nodes")
        on_progress(4, 4, "4 nodes")
        reached.set()
        go.wait()
        on_progress(4, 4, "never")

    before = advisor.plan
    monkeypatch.setattr("smp_advisor.notebook.workload_fields.changed", run)
    content = {"kind": "search", "id": "v-search-1", "workload": {}, "again": True}
    advisor._on_message(advisor, content, [])
    reached.wait()
    advisor._on_message(advisor, {"kind": "cancel"}, [])
    go.set()
    advisor._searching.join()
    *reports, end = advisor.messages
    assert [report["text"] for report in reports] == ["", "0 nodes", "4 nodes"]
    assert [report["seconds_left"] for report in reports] == [None, None, 0]
    assert (end["kind"], end["problem"], advisor.plan) == ("searched", "", before)


def test_every_field_of_the_bar_comes_back_as_no_change(source):
    for field in workload_fields(source):
        assert changes_of(source, {field["name"]: field["value"]}) == {}
        assert field["label"]


@pytest.mark.usefixtures("sent")
def test_a_value_that_the_others_exclude_is_pinned_and_the_rest_searched():
    advisor = Advisor(advise("1.3B", P4D, instance_count=2, library="smp-v1", family="gpt2", sequence_length=512))
    ask(advisor, again=True, pin={"name": "pipeline_parallel_degree", "value": 2})
    assert (advisor.plan.pipeline_parallel_degree, advisor.state["pins"]) == (2, ["pipeline_parallel_degree"])


def test_a_progress_display_has_the_time_left_and_the_way_to_cancel(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("smp_advisor.notebook.shown.time.monotonic", lambda: now[0])
    display = ProgressDisplay("Comparing clusters")
    display.update(0, 4)
    assert display.left == ""
    now[0] += 30
    display.update(1, 4, "4 nodes")
    assert display.left == "about 2 min left; interrupt the kernel to cancel"
    display.update(3, 4)
    assert display.left == "about 10 s left; interrupt the kernel to cancel"
    display.update(4, 4)
    assert display.left == ""


FOUR = Cluster(P4D, 4)


@pytest.fixture(scope="module")
def advice():
    return advise("1.3B", P4D, instance_count=2, library="fsdp", sequence_length=512, layers=24)


def test_a_change_gives_the_advice_of_the_changed_request(advice):
    assert changed(advice, {}).plan == advice.plan
    after = changed(advice, {"instance_count": 4, "sequence_length": 1024})
    fresh = advise("1.3B", P4D, instance_count=4, library="fsdp", sequence_length=1024, layers=24)
    assert (after.plan, after.job, after.cluster, after.model) == (fresh.plan, fresh.job, fresh.cluster, fresh.model)
    assert changed(after, {"instance_count": None, "sequence_length": 512}).cluster.nodes == 1


def test_a_count_keeps_its_shape_in_another_library():
    old = advise("1.3B", P4D, library="smp-v1", sequence_length=512)
    new = changed(old, {"library": "smp-v2"})
    assert (old.model, new.model.name) == (new.model, "Llama 1.3 B")
    assert changed(new, {"model": "llama-3-8b"}).model.name == "Llama 3 8B"


def test_pins_stay_and_the_rest_is_searched(advice):
    assert pins_of(advice) == ()
    pins = {"batch_size": 3, "activation_checkpointing": "each"}
    pinned = changed(advice, {"sequence_length": 256}, pins)
    assert {name: settings_of(pinned.plan, pinned.job)[name] for name in pins} == pins
    assert pins_of(pinned) == ("activation_checkpointing", "batch_size")
    assert changed(pinned, {}, {}).plan == changed(advice, {"sequence_length": 256}).plan


def test_both_kinds_of_sharding_are_one_pin_and_the_precision_is_another():
    advice = advise("1.3B", P4D, instance_count=2, library="smp-v1", family="gpt2", sequence_length=512)
    pinned = changed(advice, {}, {"sharding": "optimizer_state", "precision": "fp16", "tensor_parallel_degree": 2})
    assert set(pins_of(pinned)) == {"sharding", "tensor_parallel_degree"}
    assert (pinned.plan.shard_optimizer_state, pinned.plan.precision) == (True, "fp16")
    other = changed(pinned, {"library": "fsdp"}, {"sharding": "optimizer_state", "precision": "fp16"})
    assert (other.plan.library, other.plan.precision) == ("fsdp", "fp16")


def test_changes_of_a_request():
    def request(**keywords):
        return Request.of("1.3B", keywords.pop("cluster", P4D), **keywords)

    job = Job(tokens=1e9)
    cases = (
        (request(cluster=FOUR), {"instance_count": 8}, request(cluster=FOUR.instance, instance_count=8)),
        (request(cluster=FOUR), {"cluster": "ml.p5.48xlarge"}, request(cluster="ml.p5.48xlarge", instance_count=4)),
        (request(job=job), {"sequence_length": 512}, request(job=Job(tokens=1e9, sequence_length=512))),
        (request(max_days=30), {"max_days": None}, request()),
        (request(tokens="1B", batch_size=2), {"tokens": None, "batch_size": None}, request()),
        (request(layers=12), {"model": "1.3B"}, request()),
        (request(layers=12), {"layers": None}, request()),
        (request(library="fsdp"), {"library": None}, request()),
        (request(job=job, library="fsdp"), {"library": "auto"}, request(job=job)),
    )
    for before, changes, after in cases:
        assert before.changed(**changes) == after, changes
    assert request(job=job).changed(tokens=None).job == Job()
    assert "precision" not in request(job=job).user_settings  # the library decides
    assert "precision" in request(job=job).changed(precision="fp16").user_settings
    assert request(stack="hf-eager").changed(stack="hf-sdpa").job.attention == "fused"
    for changes, reason in (
        ({"warp": 1}, "no setting 'warp'"),
        ({"library": "x"}, "library must"),
        ({"data": 3}, "data"),
    ):
        with pytest.raises(AdvisorError, match=reason):
            request().changed(**changes)


def test_a_job_stays_the_users_own_job():
    advice = advise("1.3B", P4D, Job(sequence_length=512, precision="bf16"), library="smp-v1", family="gpt2")
    assert changed(advice, {"tokens": "1B"}).job.precision == "bf16"


def test_what_cannot_be_searched_is_a_sentence(advice):
    with pytest.raises(AdvisorError, match="did you mean sequence_length"):
        changed(advice, {"sequence_lenght": 2})
