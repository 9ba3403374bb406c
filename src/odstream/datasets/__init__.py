"""Datasets: what a training loop iterates over, and the sources that contexts come from."""

from odstream.datasets.lerobot import LeRobotDataSource, LeRobotFieldMappingCfg
from odstream.datasets.online_data import OnlineDataset
from odstream.datasets.sampler import ChunkSizeSampler, GMMChunkSampler, UniformChunkSampler
from odstream.datasets.schema import data_schema_fingerprint, require_same_schema, validate_data_schema
from odstream.datasets.sequence import BatchSource, SequenceSpecCfg
from odstream.datasets.sequence_data import OfflineDataset, SequenceDataset
from odstream.datasets.sources import OnlineDataSource, TensorDataSource
from odstream.errors import DataBudgetExhaustedError, DataUnavailableError

__all__ = [
    "BatchSource",
    "ChunkSizeSampler",
    "DataBudgetExhaustedError",
    "DataUnavailableError",
    "GMMChunkSampler",
    "LeRobotDataSource",
    "LeRobotFieldMappingCfg",
    "OfflineDataset",
    "OnlineDataSource",
    "OnlineDataset",
    "SequenceDataset",
    "SequenceSpecCfg",
    "TensorDataSource",
    "UniformChunkSampler",
    "data_schema_fingerprint",
    "require_same_schema",
    "validate_data_schema",
]
