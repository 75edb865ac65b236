// Package node is the daemon: it keeps a machine in its network.
//
// A [Daemon] has an identity and settings in its state directory ([State]) and a local API. While it is up it
// runs two things that meet only in messages:
//
//	session   the stream to the coordinator: says hello, hands maps and changes over, reports what changed here
//	mesh      the network itself: one goroutine that owns every peer's path agent, the relays' bindings and
//	          what STUN says, and tells engine, host and dns what to do
//
// The mesh is started from the last map as soon as there is one, and does not end when the coordinator goes:
// tunnels, punching and relays that stand elsewhere go on without it. Only the coordinator's word that the
// node was removed, or the person's, ends it.
//
// The package never imports control: they meet in wire.
package node
