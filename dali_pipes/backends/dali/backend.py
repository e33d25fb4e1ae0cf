"""NVIDIA DALI as a backend: an ExternalSource takes the plan, and DALI delivers the batches.

On a GPU, and with resize=dali, the graph makes finished images, which a DALIGenericIterator returns
(`_deliver_graph_outputs`). Otherwise, on the CPU, the graph only decodes regions, and `Finisher`
makes images of them in threads (`_finish_regions`). In both cases an `InWork` keeps the planned
batches that are inside DALI.
"""

import gc
import os
import warnings
from collections.abc import Iterator, Set
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import Pipeline, __version__, pipeline_def
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import OperatorConcurrency
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from dali_pipes.backends.backend import Backend, Decoded, Description, InWork
from dali_pipes.backends.dali.config import DaliConfig, DaliOptions
from dali_pipes.backends.dali.decoding import Decoding, choose, installed_versions, output_dtype
from dali_pipes.backends.dali.feed import beyond_graph, plan_nodes, planned_inputs
from dali_pipes.backends.dali.graph import (
    Decoders,
    decoder_options,
    image_graph,
    region_graph,
    routed_decoders,
)
from dali_pipes.backends.dali.routes import Routes, choose_routes
from dali_pipes.backends.needs import EVERYTHING, LOOSE
from dali_pipes.backends.pixels.finish import View, change_views
from dali_pipes.backends.pixels.functions import say_functions
from dali_pipes.backends.pixels.pool import Finisher
from dali_pipes.backends.pixels.tensors import DTYPE_BYTES, TORCH_DTYPES, pixels_of
from dali_pipes.backends.read_ahead import ReadAhead
from dali_pipes.backends.torch.config import TorchConfig
from dali_pipes.backends.transfer import Groups, copy_to_torch_memory, join_groups, to_gpu
from dali_pipes.errors import ChoiceError, ConfigError, Mention
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.steps.lists import smallest_sizes
from dali_pipes.plan.steps.whole import WholePad
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.system.cpus import cpus_near, parse_cpus, start_on_cpus
from dali_pipes.system.memory import Need
from dali_pipes.system.nvml import WITH_UTILITY
from dali_pipes.system.open_files import allow_open_files
from dali_pipes.system.traces import span

_CHECKED_TOGETHER = 2**20  # images whose sizes are looked at at once
READ_AHEAD = 2  # batches that are read from shards before DALI requests them
FINISHED = 3  # batches: one that is delivered, one ahead of it and one in work
HOST_MEMORY_PADDING = 8 * 2**20  # bytes; DALI's default, which these graphs leave as it is


def _leave_pipelines_to_the_parent() -> None:
    """Keeps a forked child, such as a DataLoader's worker, from ending a pipeline of its parent.

    A child that ends it waits forever for threads that only the parent has. Both the garbage
    collector and, at the end of the process, DALI would do so. Frozen objects are never collected.
    """
    gc.freeze()
    Pipeline._pipes.clear()


os.register_at_fork(after_in_child=_leave_pipelines_to_the_parent)

# DALI warns about missing cuFFT and NPP if CUDA itself is not installed; no operator of these
# graphs needs either of them.
warnings.filterwarnings("ignore", "nvidia-dali-cuda120 is no longer shipped with CUDA runtime")


class DaliBackend(Backend):
    """Carries out a plan with DALI, on the GPU where the batches arrive, or on the CPU.

    `decoding` says whether regions or whole images are decoded, and why.
    """

    config: DaliOptions
    makes = EVERYTHING | {LOOSE}

    def prepare(self) -> None:
        on_gpu = self.job.device.type == "cuda" and self.config.decodes_on == "gpu"
        self.device_id = self.job.device.index if on_gpu else None
        if not self._resizes_with_torch:
            self._refuse_beyond_graph()
        self._refuse_globals_before()
        self.decoding = choose(self.config, on_gpu)
        self._routes: Routes | None = None
        if self.device_id is not None and isinstance(self.config, DaliConfig):
            self._routes = choose_routes(self.job.images, self.config, self.device_id)
        self._views = list(map(View, views_of(self.job.transform)))
        # the graph ends before `augment`, except for rectangles of zeros; nor may functions that
        # draw from generators of the whole process run in threads
        augmenters = [view.augmenter for view in views_of(self.job.transform)]
        self._finishes_last = any(
            any(function.draws_from_globals for function in each.functions)
            if self._resizes_with_torch
            else each.slots or each.functions or each.fills
            for each in augmenters
        )
        self._pipeline: Pipeline | None = None
        self._read_ahead: ReadAhead | None = None
        self._finisher: Finisher | None = None

    def _refuse_beyond_graph(self) -> None:
        """Refuses steps on whole images for which DALI has no operator that does as Pillow does."""
        for view in views_of(self.job.transform):
            for step in getattr(view, "before", []):
                if beyond := beyond_graph(step):
                    what, instead = beyond
                    self._refuse_in_graph(f"does not support before: {what}", instead)
            self._refuse_mirrors(view)

    def _refuse_in_graph(self, problem: str, instead: str) -> NoReturn:
        raise ChoiceError(
            type(self.config),
            f"in DALI's graph {problem}; use {instead and f'{instead}, or '}",
            Mention(DaliConfig, "device", "cpu"),
            " with resize=torch, or ",
            Mention(TorchConfig),
        )

    def _refuse_mirrors(self, view: Transform) -> None:
        """Refuses padding that would mirror an image more than once on a side."""
        steps = getattr(view, "before", [])
        for place, step in enumerate(steps):
            if not isinstance(step, WholePad) or step.padding_mode not in ("reflect", "symmetric"):
                continue
            for first in range(0, len(self.job.images), _CHECKED_TOGETHER):
                ids = np.arange(first, min(first + _CHECKED_TOGETHER, len(self.job.images)))
                sizes = self.job.images.take_sizes(ids, upright=view.exif == "apply")
                # the smaller an image is, the more is padded, and the less there is to mirror
                sizes = smallest_sizes(steps[:place], sizes)
                there = sizes[:, [1, 0, 1, 0]] - (step.padding_mode == "reflect")
                small = ids[(step.around(sizes) > there).any(axis=1)]
                if len(small):
                    self._refuse_in_graph(
                        f"mirrors an image once on a side, and before: {step.name} with "
                        f"padding_mode={step.padding_mode} needs more of "
                        f"{self.job.images.name(small[0])}",
                        "less padding",
                    )

    def _refuse_globals_before(self) -> None:
        """Refuses functions on whole images, which run in threads here, that draw from generators
        of the whole process.
        """
        for view in views_of(self.job.transform):
            for function in view.functions_before:
                if function.draws_from_globals:
                    raise ChoiceError(
                        type(self.config),
                        f"runs before in threads, and the function {function.title} draws from "
                        "random, numpy.random or PyTorch's C++ code, which the whole process "
                        "shares; take its random numbers from its second argument (draws=…), or "
                        "use ",
                        Mention(TorchConfig),
                    )

    def describe(self) -> Description:
        rest = ""
        if self._finishes_last and not self._resizes_with_torch:
            rest = f"; after its graph, PyTorch augments and normalizes on {self.job.device}"
        rest += say_functions(self.job.transform, self.functions_on(self.config, self.job.device))
        if self.device_id is None:
            resizes = "; PyTorch resizes" if self._resizes_with_torch else ""
            return Description(
                f"DALI {__version__} on the CPU decodes {self.decoding}{resizes}{rest}"
            )

        load = self.config.engine_load
        who = self._routes or f"the JPEG engine up to {load:.0%} of each batch"
        return Description(
            f"DALI {__version__} on GPU {self.device_id} decodes {self.decoding}; {who}{rest}",
            describe_pixels(self.config, self.decoding, self._routes, self.job.batch_size),
            torch.device("cuda", self.device_id),
        )

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Decoded]:
        self._end_stream()

        # threads inherit the CPUs of the thread that starts them
        with start_on_cpus(self._cpus()) if self.config.cpus else nullcontext():
            try:
                batches = self._start(InWork(planned))
            except RuntimeError as error:
                if "nvml" not in str(error).lower():
                    raise
                what = (
                    "DALI cannot ask NVML, by which its decoder finds the CPUs near the GPU, "
                    "and the JPEG engines"
                )
                raise ConfigError(
                    f"{what}: {WITH_UTILITY} (dali-pipes doctor); DALI said: {error}"
                ) from None

        return self._read_ahead.note_failures(batches) if self._read_ahead else batches

    def _start(self, in_work: InWork) -> Iterator[Decoded]:
        self._pipeline = self.pipeline(iter(in_work))
        if self._resizes_with_torch:
            self._pipeline.build()
            return self._finish_regions(self._pipeline, in_work)
        return self._deliver_graph_outputs(self._pipeline, in_work)

    def _cpus(self) -> Set[int]:
        """The CPUs of `config.cpus`; all if the kernel does not say which are near the GPU."""
        if self.config.cpus != "gpu":
            return parse_cpus(str(self.config.cpus))
        if self.job.device.type != "cuda":
            return os.sched_getaffinity(0)

        gpu: Any = torch.cuda.get_device_properties(self.job.device)
        return cpus_near(
            gpu.pci_domain_id, gpu.pci_bus_id, gpu.pci_device_id
        ) or os.sched_getaffinity(0)

    @property
    def _resizes_with_torch(self) -> bool:
        return self.device_id is None and self.config.resize == "torch"

    def _finish_regions(self, pipeline: Pipeline, in_work: InWork) -> Iterator[Decoded]:
        """Batches of which DALI decodes the regions on the CPU, and PyTorch makes the images.

        They are delivered on the device where they arrive.
        """
        to_pinned, threads = self.job.device.type == "cuda", self.config.num_threads or 1
        # for all streams: its threads and its buffers take time to make
        self._finisher = self._finisher or Finisher(
            self._graph_transform, self.job.batch_size, threads, to_pinned
        )
        batches = self._finisher(
            (in_work.take(number), regions) for number, regions in regions_of(pipeline)
        )
        batches = map(self._finish_last, batches) if self._finishes_last else batches
        return to_gpu(batches, self.job.device) if to_pinned else batches

    def _deliver_graph_outputs(self, pipeline: Pipeline, in_work: InWork) -> Iterator[Decoded]:
        """Batches that DALI's graph finishes, on the device where they arrive.

        On a GPU they are in PyTorch's memory.
        """
        counts = [len(group) for group in self.job.transform.groups]
        views = [f"view {number}" for number in range(sum(counts))]
        is_last = self.job.transform.memory_format == "channels_last"
        # PARTIAL: a batch that is not full must stay so, and not be filled up
        iterator = DALIGenericIterator(
            [pipeline], [*views, "last"], last_batch_policy=LastBatchPolicy.PARTIAL
        )

        def decoded() -> Iterator[tuple[Any, Decoded]]:
            while True:
                with span("decode"):
                    outputs = next(iterator, None)
                if outputs is None:
                    return
                (output,) = outputs
                # DALI's HWC is what PyTorch calls channels_last, with its axes in another order
                groups = tuple(
                    output[view].permute(0, 3, 1, 2) if is_last else output[view] for view in views
                )
                # `output` goes along, since it owns the memory of the batch
                yield output, self._pair(groups, output["last"], in_work)

        dtype = TORCH_DTYPES[self._graph_transform.dtype]
        if self.device_id is not None:
            batches = copy_to_torch_memory(decoded(), dtype, counts)
        else:
            batches = (
                replace(batch, groups=join_groups(batch.groups, counts, dtype))
                for _, batch in decoded()
            )
            if self.job.device.type == "cuda":
                batches = to_gpu(batches, self.job.device)
        return map(self._finish_last, batches) if self._finishes_last else batches

    def _pair(self, groups: Groups, last: torch.Tensor, in_work: InWork) -> Decoded:
        """What DALI's graph has delivered, with its planned batch; `last` is its last output."""
        return Decoded(in_work.take(int(last[0])), groups)

    def _finish_last(self, batch: Decoded) -> Decoded:
        """A batch of placed bytes, augmented and normalized on its device."""
        return change_views(batch, self._views, View.finish)

    @property
    def _graph_transform(self) -> Transform:
        transform = self.job.transform
        return transform.without_augmentation() if self._finishes_last else transform

    def pipeline(self, planned: Iterator[PlannedBatch], **options: Any) -> Pipeline:
        """A pipeline over these planned batches, not yet built.

        `options` are further options of DALI's Pipeline.
        """
        # DALI opens all files of a batch at once
        in_flight = (1 + self.config.queue_depth) * self.job.batch_size
        if not self.job.images.whole_files or not allow_open_files(in_flight):
            self._read_ahead = ReadAhead(self.config.read_threads, READ_AHEAD)

        decoders, planned = self._decoders(planned)
        settings = self._settings
        has_several = bool(decoders.engines) or bool(self._routes and self._routes.cpu_share)
        if has_several:
            # else the decoders of one graph take turns
            settings["concurrency"] = OperatorConcurrency.FULL

        # conditionals are needed where the graph treats samples of one batch differently
        turns = self.job.transform.exif == "apply"

        with warnings.catch_warnings():
            # DALI converts each `if` of a graph with gast 0.7, of which Python 3.13 warns. Where
            # warnings are errors, DALI would go on without the conversion, and fail at the `if`.
            unexpected = r"\w+\.__init__ got an unexpected keyword argument"
            warnings.filterwarnings("ignore", unexpected, DeprecationWarning)
            return _planned_pipeline(
                self._graph_transform,
                decoders,
                self.decoding.region,
                planned,
                self._read_ahead,
                self._resizes_with_torch,
                self._routes,
                enable_conditionals=turns or has_several,
                **settings,
                **options,
            )

    def _decoders(self, planned: Iterator[PlannedBatch]) -> tuple[Decoders, Iterator[PlannedBatch]]:
        """The decoders of the graph, and the same planned batches.

        What the first batch gives to each decoder of the engine is an option of it (graph.py).
        """
        if not self._routes:
            return Decoders(self._decoder), planned

        counts = [0] * self._routes.decoder_count
        if counts and (first := next(planned, None)):
            chosen = self._routes.choose(first.images, first.ids)
            counts = [int((chosen == 1 + number).sum()) for number in range(len(counts))]
            planned = chain([first], planned)
        return routed_decoders(self._decoder, self.job.batch_size, counts), planned

    @property
    def _settings(self) -> dict[str, Any]:
        """Options of the pipeline."""
        return {
            "batch_size": self.job.batch_size,
            "num_threads": self.config.num_threads,
            "device_id": self.device_id,
            "prefetch_queue_depth": self.config.queue_depth,
        }

    @property
    def _decoder(self) -> dict[str, Any]:
        device = "cpu" if self.device_id is None else "gpu"
        return decoder_options(self.config, self.job.images.some_sizes, device)

    def _end_stream(self) -> None:
        if self._pipeline:
            shut_down(self._pipeline)
        if self._read_ahead:
            self._read_ahead.close()
        self._pipeline = self._read_ahead = None

    def close(self) -> None:
        self._end_stream()
        if self._finisher:
            self._finisher.close()
        self._finisher = None

    @classmethod
    def functions_on(cls, config: DaliOptions, device: torch.device) -> torch.device:
        return device if config.graph_finishes else torch.device("cpu")

    @classmethod
    def memory_needs(
        cls, config: DaliOptions, transform: Transform, batch_size: int, sizes: NDArray[np.int64]
    ) -> Iterator[Need]:
        on_gpu, depth = config.decodes_on == "gpu", config.queue_depth
        text, pixels = pixels_of(transform, batch_size)

        # the regions in DALI's queue are left out: their size depends on the draws
        if not config.graph_finishes:
            yield Need(
                f"{FINISHED} batches {text}",
                "host",
                FINISHED * pixels * DTYPE_BYTES[transform.dtype],
                "batch_size",
            )
            return

        queue = depth * pixels * DTYPE_BYTES[output_dtype(transform, config.decodes_on)]
        yield Need(
            f"{depth} batches {text} of DALI",
            "gpu" if on_gpu else "host",
            queue,
            "batch_size or prefetch_queue_depth",
        )

        if on_gpu:
            # whole images are in the GPU's memory until their regions have been cut out
            if not choose(config, on_gpu).region:
                yield Need(
                    f"{batch_size} decoded images",
                    "gpu",
                    int(batch_size * sizes.prod(axis=1).mean() * 3),
                    "batch_size",
                )
            yield from _decoder_needs(config)


def _decoder_needs(config: DaliOptions) -> Iterator[Need]:
    """The memory that DALI's mixed decoder takes when it is created, before the first image.

    It has `num_threads` threads in a separate pool (dali/operators/imgcodec/image_decoder.h:217 in
    DALI 2.4.0, :221 in 2.2.0), and the caller's thread. Each takes one buffer of
    `device_memory_padding` and two page-locked ones of `host_memory_padding` (nvImageCodec 0.8.0,
    extensions/nvjpeg/cuda_decoder.cpp:270-318).

    What it allocates for the JPEG engines (hw_decoder.cpp:529-568) is left out: a GPU may have
    none, and how nvjpegDecodeBatchedPreAllocate uses the hints is not public.
    """
    threads = (config.num_threads or 1) + 1
    per_thread = f"buffers of {threads} decoder threads"
    yield Need(
        per_thread,
        "gpu",
        threads * config.device_memory_padding,
        "num_threads or device_memory_padding",
    )
    yield Need(
        f"page-locked {per_thread}", "host", threads * 2 * HOST_MEMORY_PADDING, "num_threads"
    )


def describe_pixels(
    config: DaliOptions, decoding: Decoding, routes: Routes | None, batch_size: int
) -> str:
    """What determines the pixels on a GPU.

    An image's route does not depend on its batch. But no GPU has shown yet that the JPEG engine
    makes the same bits of an image in any batch, so its batches are named.
    """
    how = "regions" if decoding.region else "whole images"
    upsampling = "fancy" if config.jpeg_fancy_upsampling else "plain"
    who = routes.mix if routes else f"hw_decoder_load={config.engine_load:g}"
    is_exact = not config.engine_load and decoding.repeats
    batches = "exact" if is_exact else f"batches of {batch_size}"
    return f"{installed_versions()}, {how}, {upsampling} upsampling, {who}, {batches}"


def shut_down(pipeline: Pipeline) -> None:
    """Ends the pipeline's threads now.

    Otherwise they live until a traceback or a cycle that holds the pipeline is collected.
    """
    pipeline._shutdown()  # what Pipeline.__del__ does; tensors that were handed out stay valid


def regions_of(pipeline: Pipeline) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Yields the number of each planned batch with its regions, (height, width, C) uint8.

    The regions own their memory.
    """
    while True:
        try:
            with span("decode"):
                decoded, numbers = pipeline.run()
        except StopIteration:
            return

        # torch.from_dlpack asks for streams and devices first, which takes three times as long
        regions = [torch._C._from_dlpack(decoded[at].__dlpack__()) for at in range(len(decoded))]
        yield int(numbers.at(0)), regions


@pipeline_def
def _planned_pipeline(
    transform: Transform,
    decoders: Decoders,
    region: bool,
    planned: Iterator[PlannedBatch],
    read_ahead: ReadAhead | None,
    only_decodes: bool,
    routes: Routes | None,
) -> tuple[DataNode, ...]:
    device = "cpu" if Pipeline.current().device_id is None else "gpu"
    inputs = planned_inputs(transform, only_decodes, routes)
    inputs = plan_nodes(inputs, planned, read_ahead)

    if only_decodes:
        return region_graph(inputs, transform, decoders, region), inputs.number

    return *image_graph(inputs, transform, decoders, region, device), inputs.number
