"""What a probe found: per kernel, dtype and head dimension yes, or why not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch

DTYPES = ("float16", "bfloat16", "float32")
DIMS = (40, 64, 128, 512)  # UNet of SD 1.5, of SDXL; Flux and SD3; VAE
UNET_DIMS = (40, 64)
FUSED_SDP = ("sdp:flash", "sdp:mem-efficient", "sdp:cudnn", "sdp:overrideable")
FUSED = (*FUSED_SDP, "xformers")


@dataclass(frozen=True)
class Support:
    """Whether something runs; `reason` says in plain words why not."""

    runs: bool
    reason: str = ""


def dtype_name(dtype: torch.dtype | str) -> str:
    """torch.float16, "torch.float16" and "float16" -> "float16"."""
    return str(dtype).rpartition(".")[2]


@dataclass(frozen=True, eq=False)
class Probe:
    """What one device was seen to run.

    device: as torch names it ("cuda:0"). architecture: "gfx906", "sm_86", "cpu", else the device type.
    kernels: kernel name -> (dtype name, head dimension) -> Support; the names are "sdp:flash",
        "sdp:mem-efficient", "sdp:cudnn", "sdp:math", "xformers", on XPU and plug-in devices "sdp:overrideable".
    override: HSA_OVERRIDE_GFX_VERSION, "" if not set. pretended: made up because of TILED_PRETEND.
    usable: False where the device itself failed and no kernel was tried. notes: sentences for the user.
    seconds: what the probe took.
    """

    device: str
    name: str
    architecture: str
    kernels: dict[str, dict[tuple[str, int], Support]]
    versions: dict[str, str]
    bf16_matmul: Support = field(default=Support(False, "not tried"))
    memory_bytes: int | None = None
    cache_bytes: int | None = None
    override: str = ""
    pretended: bool = False
    usable: bool = True
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def _found(self, kernel: str, dtype, dims) -> list[Support]:
        names = DTYPES if dtype is None else (dtype_name(dtype),)
        table = self.kernels.get(kernel, {})
        return [table[name, dim] for name in names for dim in dims if (name, dim) in table]

    def runs(self, kernel: str, dtype: torch.dtype | str | None = None, dim: int | None = None) -> bool:
        """Whether `kernel` runs; None for dtype or dim means: for at least one of those tried."""
        return any(s.runs for s in self._found(kernel, dtype, DIMS if dim is None else (dim,)))

    def runs_unet(self, kernel: str, dtype: torch.dtype | str | None = None) -> bool:
        """Whether `kernel` runs at a head dimension of the UNets."""
        return any(s.runs for s in self._found(kernel, dtype, UNET_DIMS))

    def why_not(self, kernel: str, dtype: torch.dtype | str | None = None) -> str:
        """Why `kernel` does not run at the UNets' head dimensions; "" where it does."""
        found = self._found(kernel, dtype, UNET_DIMS)
        if any(s.runs for s in found):
            return ""
        return next((s.reason for s in found if s.reason), "not tried")

    def fused(self, dtype: torch.dtype | str | None = None) -> tuple[str, ...]:
        """The kernels with O(N) memory that run at a head dimension of the UNets."""
        return tuple(kernel for kernel in FUSED if self.runs_unet(kernel, dtype))

    @property
    def label(self) -> str:
        return {"cpu": "this CPU"}.get(self.architecture, self.architecture)

    def short_reason(self, kernel: str, dtype: torch.dtype | str | None = None) -> str:
        """`why_not` without what stands in brackets."""
        return self.why_not(kernel, dtype).partition(" (")[0]

    def summary(self, dtype: torch.dtype | str | None = None) -> str:
        """One line: "gfx906 runs no fused kernel (xformers not installed; SDPA: math only)"."""
        kind = f" in {dtype_name(dtype)}" if dtype is not None else ""
        fused = self.fused(dtype)
        if fused:
            return f"{self.label} runs {', '.join(fused)}{kind}"
        sdpa = "SDPA: math only" if self.runs("sdp:math") else f"SDPA {self.short_reason('sdp:math')}"
        return f"{self.label} runs no fused kernel{kind} (xformers {self.short_reason('xformers', dtype)}; {sdpa})"

    def to_dict(self) -> dict:
        """Everything, as JSON can hold it: {"kernels": {"sdp:flash": {"float16": {"40": {"runs": ...}}}}}."""
        kernels = {
            kernel: {
                name: {str(dim): asdict(table[name, dim]) for dim in DIMS if (name, dim) in table} for name in DTYPES
            }
            for kernel, table in self.kernels.items()
        }
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            **values,
            "kernels": kernels,
            "bf16_matmul": asdict(self.bf16_matmul),
            "notes": list(self.notes),
            "fused": list(self.fused()),
            "summary": self.summary(),
        }

    def __str__(self) -> str:
        return "\n".join([*self._head(), "", *self._table(), *(["", *self.notes] if self.notes else [])])

    def _head(self) -> list[str]:
        def size(count, unit, name):
            return f"{count / unit:.4g} {name}" if count else "unknown"

        bf16 = self.bf16_matmul
        override = f", by HSA_OVERRIDE_GFX_VERSION={self.override}" if self.override else ""
        rows = {
            "device": f"{self.name} ({self.device})" + (", pretended" if self.pretended else ""),
            "architecture": self.architecture + override,
            "memory": f"{size(self.memory_bytes, 1 << 30, 'GB')}, cache {size(self.cache_bytes, 1 << 20, 'MB')}",
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            "bf16 matmul": ("yes" if bf16.runs else "no") + (f" ({bf16.reason})" if bf16.reason else ""),
        }
        return [f"{name:<14}{value}" for name, value in rows.items()]

    def _table(self) -> list[str]:
        lines = [f"{'kernel':<19}{'fp16':<12}{'bf16':<12}{'fp32':<12}why not"]
        partly = False
        for kernel, table in self.kernels.items():
            cells, reasons = [], []
            for name in DTYPES:
                dims = [dim for dim in DIMS if (name, dim) in table]
                good = [str(dim) for dim in dims if table[name, dim].runs]
                partly |= 0 < len(good) < len(dims)
                cells.append("no" if not good else "yes" if len(good) == len(dims) else " ".join(good))
                reasons += [table[name, dim].reason for dim in dims]
            shortest = {reason.partition(" (")[0]: reason for reason in reversed(reasons) if reason}
            why = "; ".join(reversed(shortest.values()))
            lines.append(f"{kernel:<19}{''.join(f'{cell:<12}' for cell in cells)}{why}".rstrip())
        if partly:
            lines.append("Numbers are the head dimensions at which the kernel runs; tried: 40, 64, 128, 512.")
        return lines
