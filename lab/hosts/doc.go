// Package hosts builds a whole data centre out of network namespaces and veth
// links on one machine: for the demo, for the tests, and for learning.
//
//	                       ┌── lb-1  forwarder + controller
//	client ── router ──────┼── lb-2     (own run and state directory each)
//	          BIRD, ECMP   ├── be-1  nginx, echo server, agent
//	                       └── be-2 …   (VIPs on lo, replies go direct)
//
// Each node is a namespace with one interface, eth0, linked to a port of the
// router. The router learns the VIPs by BGP from the load balancers and
// spreads flows over them by its kernel's multipath routes.
//
// Guarantees:
//   - Two labs with different names do not interfere: all names contain the instance, and all files
//     are in its run directory.
//   - Everything it starts is recorded in the state file. Down removes all of it, also after a
//     crash, and by the names alone if the file is lost.
//   - It signals only processes that it has recorded (pid and start time), or that are in its own
//     namespaces.
//   - It never touches the machine's own interfaces, routes or sysctls.
//
// It has no knowledge of events and load: see lab/events and lab/traffic.
package hosts
