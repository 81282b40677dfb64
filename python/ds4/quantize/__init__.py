"""The GGUF workshop: making model files from official checkpoints. In this release: conversion only."""

from .conversion import ConversionPlan, convert, plan_conversion
from .recipes import RECIPES
from .safetensors import Checkpoint, CheckpointError

__all__ = ["RECIPES", "Checkpoint", "CheckpointError", "ConversionPlan", "convert", "plan_conversion"]
