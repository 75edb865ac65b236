// Package stun speaks STUN: the binding client, the binding responder and the
// discovery of what the NAT in between does (RFC 8489, RFC 5780). It is our own
// because STUN shares its UDP socket with WireGuard and weft frames on both
// sides, and because a responder that answers the whole internet must not
// allocate for it.
//
// # Nothing here owns a socket
//
// Whoever reads the socket sorts what arrives with [Is] (the magic cookie) and,
// where old clients shall be served, [IsClassic]; hands the datagram to a
// [Responder], a [Transaction] or a [Discovery]; and sends what these return.
// None of them starts a goroutine, reads a clock, locks or logs: `now` is an
// argument and the next deadline a result. Only [Serve], for a stand-alone
// responder and for tests, runs a loop.
//
//	datagram ─▶ Is ─▶ Parse ─▶ Message        requests, responses, of either side
//	            Responder.Respond ─▶ Reply     what to send, from which socket, to whom
//	now ──────▶ Transaction.Poll ─▶ packet     one question, repeated until answered
//	            Transaction.Handle ─▶ Result   the address that the server saw
//	now ──────▶ Discovery.Poll ─▶ Action       what to send, by which of its sockets
//	            Discovery.Handle ─▶ Report     RFC 4787's words for the NAT
//
// # What the responder refuses
//
// It answers binding requests and nothing else: no indication, no response (so
// two responders can never be made to talk to each other), no other method, and
// nothing whose framing or FINGERPRINT is wrong. A request with an attribute it
// must understand and does not gets error 420 with UNKNOWN-ATTRIBUTES. RFC 3489's
// RESPONSE-ADDRESS is such an attribute: it would make the responder send
// wherever a stranger likes. It checks no credentials: MESSAGE-INTEGRITY in a
// request is understood and not needed, as for any public binding server.
//
// A forged source address makes any responder send to a third party, so what it
// sends is bounded: counted with IP and UDP headers, a reply is at most 1.5 times
// its request, and attributes that do not fit that are left out (the mapped
// address always fits). The exception is a responder given [Alternates]: RFC 5780,
// section 6.1, obliges it to four addresses in every reply, which is at most 2.5
// times (IPv6, bare header). PADDING is answered with no more than was received.
//
// # One address, or two
//
// A fleet's servers mostly have one address. Such a responder says so: no
// OTHER-ADDRESS, and 420 to every CHANGE-REQUEST (RFC 5780, section 6). Clients of
// RFC 3489 always send CHANGE-REQUEST: with no flag set it is answered, and with
// a flag set met with silence, because such clients (Debian's stun among them)
// take any datagram with their transaction ID, an error too, as proof that the
// NAT let it in. With [Alternates], [Reply].From names the socket that must send.
//
// A second port costs nothing, and tells half of what a second address does. A
// responder with [Responder].Ports names the other one in [AttrAlternatePort] and
// serves a CHANGE-REQUEST for the port alone; RFC 5780 has no words for that, so
// the attribute is ours, and who does not know it skips it.
//
// # What discovery claims
//
// [Discovery] never guesses: whatever the servers at hand can't show is Unknown.
//
// Mapping: [ClassifyMapping] compares what several servers, or several ports of
// one, saw of the same socket. It rests on exclusion: two ports of one address that
// see different mappings leave only address and port-dependent mapping; two addresses
// that see the same leave only endpoint-independent mapping. Two addresses that
// differ exclude only the latter, and without a pair of ports the answer is
// Unknown. The first server is asked again at the end: a mapping that has moved
// shows what time did, and not what the destination does.
//
// Filtering: RFC 5780's tests, in which silence is the evidence, from a socket that
// has sent to one server alone. Where no server has a second address, a relay at
// another one is had to send a packet that nothing asked for: see [Action]. Silence
// is believed if what was silent answers when asked directly, if the mapping stands,
// and if the share of packets that were seen to be lost does not explain it.
//
// Port allocation: [ClassifyAllocation] compares what sockets got that asked one
// after the other. Hairpinning: two sockets send to each other's outside address,
// both of them, because a NAT that hairpins applies its filter (RFC 4787, REQ-9).
// What arrives shows that it does; that nothing does shows the opposite only where
// it is known that the filters were open to what was sent, which they are not
// where each destination is shown another port, or where unasked packets spoil a
// mapping.
//
//	                      mapping      filtering    ports  hairpinning
//	two relays, one of
//	 them with two ports   all          all (*)      all    if EIM or EIF
//	two, one port each     EIM or not   EIF or not   all    if EIM or EIF; that not: if EIF
//	one with two ports     APDM or not  APDF or not  all    that it does, if EIM or EIF
//	one with one port      -            -            all    that it does, if EIM or EIF
//
// (*) if the other one probes; otherwise APDF or not. That there is no NAT shows in
// one answer. With several outside addresses, and sockets now at one and now at
// another, mappings are compared as a whole, address and port; ports in a row are
// looked for at each address; and a relay's probe is waited for by a socket at the
// address to which the relay sends, if there is one.
package stun
