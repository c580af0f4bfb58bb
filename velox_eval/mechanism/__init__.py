"""The geometry studies in the MorphKV and KVzip documents of VeloxQuant-MLX, on our caches and with controls."""
