// Package events shows Guideway at work: it puts a lab under load, does to it
// what happens to real clusters, and judges what the clients saw.
//
//	Run ─► hosts.Up ─► for each event: restore ─► load ─► event ─► settle ─► judge ─► Down
//
// What it guarantees:
//   - Each event starts from the whole topology and from a new load on
//     addresses not used before, so what it breaks is its own doing, and any
//     order and repetition of events is defined.
//   - What may break is computed before it can: see judge.go. Everything else
//     that fails makes the demo fail.
//   - The lab is removed in the end, also after an error or Ctrl-C.
package events
