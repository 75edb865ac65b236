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
// What the agents need to pass hard NATs, the mesh gives them: sockets of their own, each on a link that the engine
// numbers, and a STUN server's word on the first; the NAT's behaviour, found out in the background; where relays see
// a peer that has no direct path; and one budget of packets for all. Who asks why a peer is reached as it is gets all
// that the agent knows ([Daemon.Explain]).
//
// The package never imports control: they meet in wire.
package node
