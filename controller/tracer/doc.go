// Package tracer asks load balancers what they do with a packet (Maglev paper,
// section 4.4): it sends marked packets towards a VIP and gathers the reports
// that every load balancer on their way sends back.
//
//	Plan ─► mark.go ─► packet.go ─► Link.Send ══► load balancers ══► backend
//	                                                   ║
//	Result ◄─ trace.go ◄─ report.go ◄─ Link.Receive ◄══╝  one report each
//
// mark.go, packet.go and report.go know neither clock nor socket nor
// randomness; trace.go keeps time; link.go is the kernel's side. The format of
// marks is held by vectors/trace.json, in step with datapath/src/trace.rs.
package tracer
