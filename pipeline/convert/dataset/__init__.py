"""`convert_dataset_to_HDF5`: any PyTorch or Hugging Face dataset of dicts to HDF5 files."""
