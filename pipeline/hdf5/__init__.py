"""HDF5 shards in the layout of Model Zoo readers; the only package that imports h5py for them."""
