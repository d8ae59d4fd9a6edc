//! The forwarder's metrics, in the order of its page: docs/counters.md is made from this list
//! (`make generate`).

daemon::define_metrics! {
    BUILD_INFO "guideway_build_info" Gauge ["program", "version"]
        "Version of the program."
    FORWARDER_UP "guideway_forwarder_up" Gauge []
        "1: forwarding by a plan."
    PLAN_SAVED "guideway_plan_saved" Gauge []
        "1: the running plan is on disk."
    FORWARDER_CONTROLLER_ABSENT_SECONDS "guideway_forwarder_controller_absent_seconds" Gauge []
        "How long no controller has requested anything of the forwarder: it goes on by its last plan, and nothing follows the backends' health. 0: one is there."
    TAKE_OVER_TIMESTAMP_SECONDS "guideway_take_over_timestamp_seconds" Gauge []
        "When this process took over from its predecessor."
    TAKE_OVER_PAUSE_SECONDS "guideway_take_over_pause_seconds" Gauge []
        "How long nothing was taken from the devices then; frames waited in their rings."
    TAKE_OVER_EMPTIED_TABLES "guideway_take_over_emptied_tables" Gauge []
        "Connection tables that had to start empty then."
    TUNNEL_PROBE_PACKETS_TOTAL "guideway_tunnel_probe_packets_total" Counter ["result"]
        "Packets of health checks through the tunnels, by what became of them."
    TUNNEL_PROBE_DEVICE_UP "guideway_tunnel_probe_device_up" Gauge []
        "1: health checks through the tunnels leave by their device."
    CONFIG_GENERATION "guideway_config_generation" Gauge []
        "Generation of the running plan."
    NEIGHBOURS_UNRESOLVED "guideway_neighbours_unresolved" Gauge []
        "Active backends whose next hop is not known."
    TABLE_BUILD_SECONDS "guideway_table_build_seconds" Gauge []
        "Time to decode the plan and build its changed tables."
    TABLE_FINGERPRINT "guideway_table_fingerprint" Gauge ["service", "fingerprint"]
        "Always 1; the label is equal on all machines with the same members."
    FRAMES_TOTAL "guideway_frames_total" Counter ["verdict"]
        "Received frames by their final verdict, those that the kernel flow cache sent among them."
    DROP_PACKETS_TOTAL "guideway_drop_packets_total" Counter ["reason"]
        "Dropped frames by reason."
    SPILLED_PACKETS_TOTAL "guideway_spilled_packets_total" Counter []
        "Redirected ones that went to another cluster."
    MISDIRECTED_PACKETS_TOTAL "guideway_misdirected_packets_total" Counter []
        "Packets steered to another worker than their flow's, which was full."
    ORIGINATED_PACKETS_TOTAL "guideway_originated_packets_total" Counter ["kind"]
        "Frames made beyond those received."
    ORIGINATED_LOST_PACKETS_TOTAL "guideway_originated_lost_packets_total" Counter []
        "Those that could not be made or sent: no memory, or a full transmit ring."
    UNACCOUNTED_PACKETS "guideway_unaccounted_packets" Gauge []
        "Received frames without a verdict; 0 at rest."
    FRAGMENTS_TOTAL "guideway_fragments_total" Counter ["action"]
        "Fragments by what was done."
    FRAGMENTS_WAITING "guideway_fragments_waiting" Gauge []
        "Received fragments that wait for their first one, and have no final verdict yet."
    QUIC_PACKETS_TOTAL "guideway_quic_packets_total" Counter ["by"]
        "UDP packets to services with QUIC connection ids, by what decided: the connection id, or why the flow did."
    MULTIPATH_PACKETS_TOTAL "guideway_multipath_packets_total" Counter ["by"]
        "TCP packets to services with Multipath TCP, by what selected their bucket: a key, a token, an echoed timestamp, or why the five-tuple did."
    MULTIPATH_UNSERVED_SYNS_TOTAL "guideway_multipath_unserved_syns_total" Counter []
        "SYNs that request Multipath TCP of services without it: their connections have one path."
    ICMP_TOO_BIG_TOTAL "guideway_icmp_too_big_total" Counter ["direction"]
        "ICMP errors that report an MTU: received about our tunnels, sent to clients."
    VIP_PACKETS_TOTAL "guideway_vip_packets_total" Counter ["service", "vip", "protocol", "port"]
        "Packets sent to backends, by VIP."
    VIP_BYTES_TOTAL "guideway_vip_bytes_total" Counter ["service", "vip", "protocol", "port"]
        "Their bytes, inner IP packets."
    BACKEND_PACKETS_TOTAL "guideway_backend_packets_total" Counter ["service", "backend"]
        "Packets sent, by backend."
    BACKEND_BYTES_TOTAL "guideway_backend_bytes_total" Counter ["service", "backend"]
        "Their bytes, inner IP packets."
    BACKEND_NEW_CONNECTIONS_TOTAL "guideway_backend_new_connections_total" Counter ["service", "backend"]
        "Times the backend was selected for a packet without a tracked connection."
    CONNECTIONS "guideway_connections" Gauge ["class"]
        "Tracked connections by class."
    CONNECTIONS_MAX "guideway_connections_max" Gauge []
        "Connections that can be tracked."
    BACKEND_CONNECTIONS "guideway_backend_connections" Gauge ["service", "backend"]
        "Tracked connections by backend."
    CONNECTIONS_HITS_TOTAL "guideway_connections_hits_total" Counter []
        "Packets whose tracked connection decided, without those that the kernel flow cache sent."
    CONNECTIONS_MISSES_TOTAL "guideway_connections_misses_total" Counter []
        "Packets without a tracked connection."
    CONNECTIONS_INSERTS_TOTAL "guideway_connections_inserts_total" Counter []
        "Connections tracked anew."
    CONNECTIONS_EXPIRED_TOTAL "guideway_connections_expired_total" Counter []
        "Tracked connections that expired."
    CONNECTIONS_DISPLACED_TOTAL "guideway_connections_displaced_total" Counter []
        "Unconfirmed ones displaced by newer ones."
    CONNECTIONS_REFUSED_TOTAL "guideway_connections_refused_total" Counter ["cause"]
        "Packets sent by hash, untracked, by cause."
    CONNECTIONS_UNCONFIRMED_AT_SHARE_TOTAL "guideway_connections_unconfirmed_at_share_total" Counter []
        "Packets that did not confirm their connection: its service has its share of the table."
    SECOND_CHANCE_PACKETS_TOTAL "guideway_second_chance_packets_total" Counter ["action"]
        "Packets without a tracked connection that an earlier table had another backend for, by what was done."
    RX_PACKETS_TOTAL "guideway_rx_packets_total" Counter ["interface", "queue"]
        "Frames taken off receive rings, and segments cut from joined ones."
    RX_BYTES_TOTAL "guideway_rx_bytes_total" Counter ["interface", "queue"]
        "Their bytes."
    TX_PACKETS_TOTAL "guideway_tx_packets_total" Counter ["interface", "queue"]
        "Frames put on transmit rings."
    TX_BYTES_TOTAL "guideway_tx_bytes_total" Counter ["interface", "queue"]
        "Their bytes."
    TX_LOST_PACKETS_TOTAL "guideway_tx_lost_packets_total" Counter ["interface", "queue"]
        "Frames the kernel refused to send."
    RX_LOST_PACKETS_TOTAL "guideway_rx_lost_packets_total" Counter ["interface", "queue", "where"]
        "Frames lost before us, by place."
    RX_JOINED_PACKETS_TOTAL "guideway_rx_joined_packets_total" Counter ["interface", "queue"]
        "Frames of segments that the kernel or the device had joined, which were cut (driver af_packet): the device counts one where guideway_rx_packets_total counts the segments."
    CHECKSUM_SAMPLES_TOTAL "guideway_checksum_samples_total" Counter ["interface", "state"]
        "Frames of TCP and UDP that were looked at, twenty a second at most of each worker: with a checksum (complete), or with that of the pseudo-header, as their sender leaves it to a device (incomplete)."
    FILTER_PACKETS_TOTAL "guideway_filter_packets_total" Counter ["interface", "decision"]
        "Frames at the filter, by decision: taken to user space, passed to the kernel, or cached: sent by the kernel flow cache."
    KERNEL_CACHE_PACKETS_TOTAL "guideway_kernel_cache_packets_total" Counter []
        "Packets that the kernel flow cache sent, without a worker."
    KERNEL_CACHE_ENTRIES_TOTAL "guideway_kernel_cache_entries_total" Counter ["event"]
        "Entries of the kernel flow cache: entered, retargeted (another target for the same flow), displaced by another flow, refused_full (no place), closed by SYN, FIN or RST, expired."
    PASSED_PACKETS_TOTAL "guideway_passed_packets_total" Counter ["interface", "result"]
        "Passed frames by whether the kernel took them back."
    TAP_UP "guideway_tap_up" Gauge ["interface"]
        "1: there is a TAP by which frames go back to the kernel."
    WORKER_BUSY_RATIO "guideway_worker_busy_ratio" Gauge ["worker"]
        "Share of the latest second spent on frames."
    THREAD_HEARTBEAT_AGE_SECONDS "guideway_thread_heartbeat_age_seconds" Gauge ["thread"]
        "Since the thread went round its loop: a worker, the slow path, the steering thread; next-hops, punt, probes, take-over, which packets do not need at once."
}
