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
//	now ──────▶ Discovery.Poll/Handle ─▶ Report   RFC 4787's words for the NAT
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
// # What discovery claims
//
// [ClassifyMapping] compares what several servers, or several ports of one, saw of
// the same socket. It rests on exclusion: two ports of one address that see
// different mappings leave only address and port-dependent mapping; two addresses
// that see the same leave only endpoint-independent mapping. Two addresses that
// differ exclude only the latter, and without a pair of ports the answer is
// Unknown. [Discovery] adds RFC 5780's filtering tests, in which silence is the
// evidence; silence is believed only of a socket that answers when asked directly
// afterwards. What cannot be known is Unknown, and never guessed.
package stun
