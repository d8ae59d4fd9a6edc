// Package events demonstrates Guideway: it puts a lab under load, causes events that happen to
// real clusters, and judges what the clients saw.
//
//	Run ─► hosts.Up ─► for each event: restore ─► load ─► event ─► settle ─► judge ─► Down
//
// Guarantees:
//   - Each event starts with the whole topology and a new load on addresses not used before, so
//     that all effects are its own, and events can be run and repeated in any order.
//   - What may break is computed before the event: see judge.go. Any other failure makes the demo
//     fail.
//   - The lab is removed at the end, also after an error or Ctrl-C.
package events
