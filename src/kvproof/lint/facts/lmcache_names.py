"""What LMCache 0.5.6 reads: settings, flags of its server, keys of its connectors. Read in its source."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SETTINGS = _names("""
app_id audit_actual_remote_url blend_check_layers blend_min_tokens blend_recompute_ratios blend_special_str
blend_thresholds blocking_timeout_secs cache_policy chunk_size chunk_statistics_auto_exit_target_unique_chunks
chunk_statistics_auto_exit_timeout_hours chunk_statistics_auto_start_statistics chunk_statistics_strategy
controller_pull_url controller_reply_url controller_url enable_async_loading enable_blending enable_chunk_statistics
enable_controller enable_hidden_state_cache enable_kv_events enable_lazy_memory_allocator enable_p2p enable_pd
enable_scheduler_bypass_lookup enable_xpyd external_backends external_lookup_client extra_config gds_backend
gds_buffer_size gds_path gds_path_sharding hidden_state_layers hidden_states_retrieve_mode hit_miss_ratio
internal_api_server_enabled internal_api_server_host internal_api_server_include_index_list
internal_api_server_port_start internal_api_server_socket_path_prefix lazy_memory_expand_trigger_ratio
lazy_memory_initial_ratio lazy_memory_safe_size lazy_memory_step_ratio lmcache_instance_id
lmcache_worker_heartbeat_delay_time lmcache_worker_heartbeat_time lmcache_worker_ids lmcache_worker_port
lmcache_worker_ports local_cpu local_cpu_use_hugepages local_disk local_disk_path_sharding lookup_server_worker_ids
lookup_timeout_ms maru_path maru_pool_size max_hidden_state_cpu_size max_local_cpu_size max_local_disk_size
min_retrieve_tokens mp_host mp_port nixl_backends nixl_buffer_device nixl_buffer_size nixl_peer_alloc_port
nixl_peer_host nixl_peer_init_port nixl_peer_port nixl_proxy_host nixl_proxy_port nixl_role numa_mode p2p_host
p2p_init_ports p2p_lookup_ports pd_allocation_timeout_sec pd_backend_mode pd_bidirectional pd_buffer_device
pd_buffer_size pd_condition_poll_interval_sec pd_max_prefill_len pd_peer_alloc_port pd_peer_host pd_peer_init_port
pd_peer_query_port pd_proxy_host pd_proxy_port pd_role pd_shutdown_timeout_sec pd_skip_proxy_notification
pin_check_interval_sec pin_timeout_sec plugin_locations pre_caching_hash_algorithm priority_limit py_enable_gc
remote_config_url remote_serde remote_storage_plugins remote_url reserve_local_cpu_size retrieve_locations
run_script_api_enabled runtime_plugin_locations save_decode_cache save_unfull_chunk script_allowed_imports
storage_plugins store_location transfer_channel use_gds use_gpu_connector_v3 use_layerwise
""")
"""Of the configuration file; in upper case behind LMCACHE_ also of the environment. Others are ignored."""
SERVER_FLAGS = _names("""
chunk-size coordinator-advertise-ip coordinator-url cpu-buffer-size disable-logging disable-metrics
disable-observability enable-tracing engine-type eviction-policy eviction-ratio eviction-trigger-watermark
gds-l1-backend gds-l1-path hash-algorithm host http-host http-port instance-id isolated-ipc l1-align-bytes
l1-devdax-path l1-init-size-gb l1-manager l1-read-ttl-seconds l1-size-gb l1-use-hugepages l1-use-lazy
l1-write-ttl-seconds l2-adapter l2-prefetch-max-in-flight l2-prefetch-policy l2-store-policy max-cpu-workers
max-gpu-workers max-workers otlp-endpoint p2p-advertise-url p2p-listen-url port prometheus-port
separate-object-groups session-ttl-seconds shm-name supported-transfer-mode transport
""")
"""The ones worth a correction; a flag that is like none of them is left alone."""
MP_PREFIX = "lmcache.mp."
MP_KEYS = frozenset(MP_PREFIX + name for name in _names("""
host port server_urls mq_timeout heartbeat_interval nonblocking_lookup_status eager_prefetch save_decode_cache
lazy_offload lazy_offload_policy lazy_offload_threshold lazy_offload_select_count transfer_intermediate_tensors
autostart autostart.server_args autostart.wait_timeout mp_transfer_mode isolated_ipc use_vmm_api hash_algorithm
"""))
MP_SERDES = frozenset({"aesgcm", "fp8", "turboquant"})
"""Registered by the MP server 0.5.6, as its error message lists them."""
MP_HOST, MP_PORT = "tcp://localhost", 5555
CHUNK_TOKENS = 256
BLOCK_TOKENS = 16
"""Smallest block of an engine; all others are multiples of it."""
