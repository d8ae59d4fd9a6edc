// Package tracer asks load balancers how they handle a packet (Maglev paper, section 4.4):
// it sends marked packets to a VIP and collects the reports that every load balancer on
// their path returns.
//
//	Plan ─► mark.go ─► packet.go ─► Link.Send ══► load balancers ══► backend
//	                                                   ║
//	Result ◄─ trace.go ◄─ report.go ◄─ Link.Receive ◄══╝  one report each
//
// mark.go, packet.go and report.go use no clock, socket or randomness; trace.go keeps time;
// link.go is the kernel's side. vectors/trace.json holds the format of marks, in step with
// datapath/src/trace.rs.
package tracer
