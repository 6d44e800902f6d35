"""Options of a training job outside of the plan: script, data, checkpoints, capacity, network, account."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from smp_advisor.core.files import data_file, is_path, sentence
from smp_advisor.errors import ExportError
from smp_advisor.libraries.job_rules import MAX_RUN_SECONDS, JobTerms, job_faults

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster

CHECKPOINT_CHANNEL = "checkpoints"
"""Input channel of the file system to which a job writes its checkpoints."""

_S3 = re.compile(r"s3://[^/\s]+")
_FSX = re.compile(r"fsx://(fs-[0-9a-f]{8,17})(/.+)")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A directory of an FSx for Lustre file system."""

    identity: str
    directory: str
    """Path that starts with the mount name, for example ``/fsx/train``."""
    writable: bool = False


Location = str | FileSystem
"""An S3 URI or a directory of a file system."""


def location(name: str, value: object) -> Location:
    """Parse ``s3://bucket/prefix`` or ``fsx://fs-0123456789abcdef0/mount-name/path``."""
    if isinstance(value, str) and _S3.match(value):
        return value
    if isinstance(value, str) and (match := _FSX.fullmatch(value)):
        return FileSystem(match[1], match[2])
    raise ExportError(sentence("export", "location", name=name, value=value))


def bucket_and_prefix(uri: str) -> tuple[str, str]:
    """Bucket and key prefix of an S3 URI, without leading and trailing slashes in the prefix."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return bucket, prefix.strip("/")


_TAG = re.compile(r"[\w .:/=+@-]*")
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def option_names(what: str, options_class: type, options: Mapping[str, Any]) -> None:
    """Raise an error if an option is no field of the dataclass."""
    names = [field.name for field in fields(options_class)]
    if unknown := sorted(options.keys() - set(names)):
        raise ExportError(f"{what} has no option {unknown[0]!r}; the options are {', '.join(names)}.")


def require_text(name: str, value: object) -> None:
    """Raise `ExportError` unless `value` is None or a string that can be a path."""
    if value is not None and not (isinstance(value, str) and value.strip() and is_path(value)):
        raise ExportError(f"{name} must be a string, for example a path, not {value!r}.")


def require_integer(name: str, value: object, longest: int, *, seconds: str = "") -> None:
    """Raise `ExportError` unless a value is None or an integer from 1 to `longest`; of `seconds`, in words."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= longest):
        return
    kind, limit = (" of seconds", f"{longest} ({seconds})") if seconds else ("", longest)
    raise ExportError(f"{name} must be a whole number{kind} from 1 to {limit}, not {value!r}.")


def require_patterns(options: object, patterns: Mapping[str, tuple[str, str]]) -> None:
    """Raise `ExportError` unless each named option is None or matches its pattern; the second text is an example."""
    for name, (pattern, example) in patterns.items():
        value = getattr(options, name)
        if value is not None and not (isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII)):
            raise ExportError(f"{name} must be text such as {example}, not {value!r}.")


def require_sagemaker(cluster: Cluster) -> None:
    """Raise `ExportError` for hardware that SageMaker does not have."""
    if cluster.instance.custom or not cluster.instance.name.startswith("ml."):
        raise ExportError(sentence("export", "no_sagemaker", machine=cluster.instance))


def require_terms(terms: JobTerms) -> None:
    """Raise `ExportError` for terms of a job that `check_estimator` would report as an error."""
    for fault in job_faults(terms):
        if fault.severity == "error":
            raise ExportError(fault.sentence)


def base_job_name(name: object, model_name: str) -> str:
    """Prefix of the name of the job: the user's, or one derived from the name of the model."""
    longest = data_file("export", "launch")["limits"]["base_job_name_characters"]
    default = re.sub(r"[^A-Za-z0-9]+", "-", model_name)
    default = f"smp-{default.strip('-')}"[:longest].strip("-") if default.strip("-") else "smp-training"
    if name is None:
        return default
    if isinstance(name, str) and len(name) <= longest and re.fullmatch(r"[A-Za-z0-9](-*[A-Za-z0-9])*", name):
        return name
    raise ExportError(sentence("export", "job_name", longest=longest, default=default, name=name))


def _check_account(options: JobOptions) -> None:
    """Raise `ExportError` for an option of the account that SageMaker would reject."""
    require_patterns(options, data_file("export", "launch")["patterns"])
    if options.output_path is not None and not isinstance(location("output_path", options.output_path), str):
        raise ExportError(f"output_path must be an S3 URI such as 's3://bucket/prefix', not {options.output_path!r}.")
    for name in ("tags", "environment"):  # with their limits in CreateTrainingJob
        texts, limit = getattr(options, name), data_file("export", "launch")["limits"][name]
        if texts is None:
            continue
        if not isinstance(texts, Mapping) or not all(isinstance(text, str) for item in texts.items() for text in item):
            raise ExportError(f"{name} must be a dictionary of strings such as {limit['example']}, not {texts!r:.200}.")
        if len(texts) > limit["entries"]:
            raise ExportError(f"{name} has {len(texts)} entries, and SageMaker accepts {limit['entries']}: pass fewer.")
        for key, value in texts.items():
            if not 1 <= len(key) <= limit["key_characters"] or len(value) > limit["value_characters"]:
                sizes = {part: limit[part] for part in ("key_characters", "value_characters")}
                raise ExportError(sentence("export", "long_texts", name=name, key=key[:40], **sizes))
    _check_texts(options)
    if options.training_plan is not None and options.spot:
        raise ExportError("A training plan reserves its instances, so it has no spot instances: choose one of them.")


def _check_texts(options: JobOptions) -> None:
    """Raise `ExportError` for characters that tags and variables cannot have."""
    for key, value in (options.tags or {}).items():
        if key.lower().startswith("aws:") or not (_TAG.fullmatch(key) and _TAG.fullmatch(value)):
            raise ExportError(sentence("export", "tag", key=key))
    for key in options.environment or {}:
        if not VARIABLE.fullmatch(key):
            raise ExportError(sentence("export", "variable", key=key))


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options of a training job, without those that SageMaker or its SDK would reject or misread."""

    script: str | None = None
    """Path of the user's training script. None for the script generated by `script_cell`, or for ``train.py`` next to
    the notebook if the model is defined by the user's code."""
    source_dir: str | None = None
    """Directory of the user's script, uploaded completely; None uploads only the script."""
    data: Mapping[str, str] | str | None = None
    """Training data, or data by channel: ``s3://bucket/prefix``, or ``fsx://<file system>/<mount name>/<path>`` for
    FSx for Lustre. None for no data; the generated script then trains on random data."""
    checkpoints: str | bool | None = None
    """Location of checkpoints in S3 or on FSx for Lustre; a job with the same location resumes. True for a location in
    the bucket of the job's output, False for none. None: True for spot jobs and for runs over one hour."""
    long_run_without_checkpoints: bool = False
    """Required, besides ``checkpoints=False``, for a run over one hour that saves no checkpoints."""
    job_name: str | None = None
    """Prefix of the name of the job; the SDK appends the time."""
    max_run_seconds: int | None = None
    """Time after which SageMaker stops a job, in seconds. A longer run is a chain of jobs that resume. None: the run's
    duration at the upper end of its interval, at most 28 days."""
    spot: bool = False
    """Whether to run on spot instances, which cost less and can be interrupted; requires checkpoints."""
    max_wait_seconds: int | None = None
    """With `spot`: total time for waiting and running, in seconds; None for twice the running time."""
    keep_alive_seconds: int | None = None
    """Time for which the instances stay available to the next job (a warm pool, which is billed), in seconds."""
    subnets: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    """Network of the job; required for file systems."""
    volume_gb: int | None = None
    """Disk size per node in GB, for instances without local disks; None for the size that the job requires. SageMaker
    refuses one larger than the local disks."""
    region: str | None = None
    """AWS region; None for that of the environment."""
    role: str | None = None
    """ARN or name of the execution role; None for the role of the notebook."""
    tags: Mapping[str, str] | None = None
    """Tags of the job."""
    training_plan: str | None = None
    """ARN of the SageMaker training plan that has reserved the instances."""
    output_path: str | None = None
    """S3 URI for models, and for checkpoints without a location; None for the default bucket."""
    output_kms_key: str | None = None
    """KMS key for the output in S3: its id, ARN or alias."""
    volume_kms_key: str | None = None
    """KMS key for the disks of instances that have no local disks."""
    trainer: str | None = None
    """Trainer of the generated script: ``trl`` (TRL's), or ``plain`` (a PyTorch loop). None: ``trl`` for fine-tuning
    with FSDP and DDP if it can follow the plan."""
    objective: str | None = None
    """Objective of fine-tuning: ``sft``, or ``dpo`` for preferences. None for ``sft``."""
    input_mode: str | None = None
    """``File`` downloads data from S3 before training, ``FastFile`` reads it during training. None for ``File``."""
    packages: tuple[str, ...] = ()
    """Packages to install for the generated script, such as ``["mlflow", "sagemaker-mlflow"]``."""
    environment: Mapping[str, str] | None = None
    """Environment variables of the container."""
    image_uri: str | None = None
    """Your container image, which must have the library of the plan; None for the container of the library."""
    extra_hyperparameters: Mapping[str, Any] | None = None
    """Additional options of the script."""
    plan_hyperparameters: bool = True
    """Whether to pass the settings of the plan to the script (batch size, ...)."""

    def __post_init__(self) -> None:
        require_text("script", self.script)
        require_text("source_dir", self.source_dir)
        if self.source_dir is not None and self.script is None:
            raise ExportError("source_dir requires your own script: pass script= with its path in that directory.")
        if not self.plan_hyperparameters and self.script is None:
            raise ExportError(sentence("export", "plan_settings"))
        require_integer("max_run_seconds", self.max_run_seconds, MAX_RUN_SECONDS, seconds="28 days")
        for name in ("spot", "plan_hyperparameters", "long_run_without_checkpoints"):
            if not isinstance(chosen := getattr(self, name), bool):
                raise ExportError(f"{name} must be True or False, not {chosen!r}.")
        base_job_name(self.job_name, "")
        extra: Any = self.extra_hyperparameters
        if extra is not None and not isinstance(extra, Mapping):
            raise ExportError(f"extra_hyperparameters must be a dictionary of options, not {extra!r:.80}.")
        limits = data_file("export", "launch")["limits"]
        longest = limits["keep_alive_seconds"]
        require_integer("keep_alive_seconds", self.keep_alive_seconds, longest, seconds=f"{longest // 60} minutes")
        if self.max_wait_seconds is not None and not self.spot:
            raise ExportError("max_wait_seconds applies to spot jobs only: pass spot=True as well.")
        require_integer("max_wait_seconds", self.max_wait_seconds, MAX_RUN_SECONDS, seconds="28 days")
        require_integer("volume_gb", self.volume_gb, limits["volume_gb"])
        _check_account(self)
        for name, (entry, example) in data_file("export", "launch")["lists"].items():
            texts: Any = getattr(self, name)
            is_list = isinstance(texts, list | tuple)
            if not is_list or not all(isinstance(text, str) and re.fullmatch(entry, text, re.ASCII) for text in texts):
                raise ExportError(f"{name} must be a list of {example}, not {texts!r:.200}.")
            object.__setattr__(self, name, tuple(texts))
        terms = JobTerms(
            spot=self.spot,
            max_run_seconds=self.max_run_seconds,
            max_wait_seconds=self.max_wait_seconds,
            checkpoints=self.checkpoints is not False,
            keep_alive_seconds=self.keep_alive_seconds,
            file_system=self.uses_file_system,
            network=bool(self.subnets and self.security_group_ids),
        )
        require_terms(terms)
        if bool(self.subnets) != bool(self.security_group_ids):
            raise ExportError("subnets and security_group_ids must be passed together: pass both or neither.")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> JobOptions:
        """Create options from keyword arguments."""
        option_names("A job", cls, options)
        return cls(**options)

    @property
    def channels(self) -> dict[str, Location]:
        """Input channels by name, without that for checkpoints; a single URI is the channel ``train``."""
        data: Any = self.data
        if data is not None and not isinstance(data, str | Mapping):
            raise ExportError(f"data must be a URI or a dictionary of channels with their URIs, not {data!r:.80}.")
        places: dict[Any, Any] = {"train": data} if isinstance(data, str) else dict(data or {})
        limits = data_file("export", "launch")["limits"]
        longest = limits["channel_characters"]
        for channel in places:
            if not isinstance(channel, str) or not re.fullmatch(rf"[A-Za-z0-9._-]{{1,{longest}}}", channel):
                raise ExportError(sentence("export", "channel", longest=longest, channel=channel))
            if channel in limits["own_channels"]:
                raise ExportError(sentence("export", "own_channel", channel=channel))
        return {channel: location(f"data for the channel {channel!r}", uri) for channel, uri in places.items()}

    @property
    def uses_file_system(self) -> bool:
        """Whether data or checkpoints are on FSx for Lustre."""
        return any(isinstance(place, FileSystem) for place in (*self.channels.values(), self.checkpoint_place))

    @property
    def checkpoint_place(self) -> Location | None:
        """Location of checkpoints that the user determines; None for none."""
        if self.checkpoints is None or isinstance(self.checkpoints, bool):
            return None
        place = location("checkpoints", self.checkpoints)
        return FileSystem(place.identity, place.directory, writable=True) if isinstance(place, FileSystem) else place
