"""Datasets: what a training loop iterates over."""

from odstream.datasets.online_data import OnlineDataset
from odstream.datasets.sampler import ChunkSizeSampler, GMMChunkSampler, UniformChunkSampler

__all__ = ["ChunkSizeSampler", "GMMChunkSampler", "OnlineDataset", "UniformChunkSampler"]
