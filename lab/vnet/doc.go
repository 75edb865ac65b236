// Package vnet is the laboratory's NAT and the laboratory's internet: one piece of code that translates and filters
// as RFC 4787 says NATs do, in whichever of the ways that it names, and a network in virtual time to put it into.
//
// A NAT judges addresses; whoever calls it rewrites packets. So the same NAT stands in path's simulations, in the
// routers of a Network, and in the laboratory's routers of real packets. It knows no protocol: who translates TCP
// or ICMP too has a NAT for each, with an ICMP identifier in the port's place. It models what RFC 4787 calls
// behaviours and, of what real NATs do against that document, the two things that decide whether peers meet: a
// filter that opens late, and unsolicited packets that occupy their 5-tuples. It models no application level
// gateways, no ports shared between inside hosts (REQ-3 forbids that), and no fragments.
//
// A Classifier finds out, by sending packets alone, what a NAT is: RFC 5780's tests and what is needed beyond
// them. That it says of every NAT what the NAT was configured to be is the proof that code and document agree.
//
// Possible is the oracle: from two sides' NATs it says how they can come to a direct path. A Network is an
// internet of hosts, routers and links in virtual time: one loop, one seed, the same events every time.
//
// # What the oracle takes to be possible
//
// A socket's known address is the one at which a server sees it; each side tells the other, by a relay that always
// works. Ports are random where nothing else is said, and a guess at one of 64,512 is no way.
//
// Plain: each side's one socket sends to the other's known address, again and again, and replies to where packets
// come from. It takes one side whose known address admits what the other sends; the reply then leaves from that
// mapping (the session rule) to the very endpoint that had written, which lets it in. Whether the known address
// admits is decided NAT by NAT along the chain. EIF admits. ADF admits whom the socket has sent to through that
// mapping, so its packets have to pass it: all NATs from the host to here must be EIM; and the other side's
// IP address must be known. APDF is like it, and the other side's source port must be known too: its whole
// chain must be EIM.
//
// Spray: one side, the opener, opens SprayOpeners sockets by sending from each to the other's known address. The
// other, the prober, sends SprayProbes probes from one socket to as many ports of the opener's known IP address,
// which find 8 openers on average; the replies leave from the mappings that were hit. Openers need not arrive, and
// had better not (a low time to live). A probe that finds a mapping still has to pass its filter, which was opened for the prober's known endpoint. So either the prober's chain is
// endpoint-independent, and its probes come from exactly there; or all filters of the opener's chain look at the
// IP address only, and the prober's IP address is known. If both can be opener or prober, either serves where
// all addresses are known.
//
// Predict: both sides' ports depend on the destination and their filters on ports, but the outermost NAT of each
// gives ports in an order: sequentially, or all of them preserving the port of a socket that nothing has been sent
// from before (and then STUN must not be asked from it: that would use its port up). Each side tells the other
// which port it expects to get, and both send there. It takes quiet NATs. Where ports of one side only can be
// foretold the oracle says Never. That is a little too strict for one kind: if the side with the foretold port has
// address-dependent mapping, it could probe from it, and the other side spray openers at it.
//
// Never: by luck only. Where all have one public address, luck is a guessed port of 64,512; with pools it is more,
// and who keeps trying may have it.
//
// Two sides behind the same NAT meet inside of it if their own addresses do: if they are in one network that does
// not keep its members apart, or if whoever else is in between admits what was said of known addresses, of which
// there are then only those of hosts that nothing translates for. Otherwise they meet outside, as if their NATs
// were two; that takes hairpinning at the outermost NAT that translates, whose addresses servers see.
//
// IPv6 is plain, as nothing is translated: both firewalls open for a known address.
//
// # Pooling
//
// With paired pooling an inside host has one public IP address, and a pool changes nothing. With arbitrary pooling
// an endpoint-independent mapping has some address of the pool, which servers see, and to peers it is the same. So
// nothing changes plainly for those either, nor for whoever admits anybody. But where the mapping depends on the
// destination, the IP address that a peer will see is one of N that servers have said nothing about, and that has
// three consequences:
//
//   - EIM-ADF with a dependent mapping on the other side that does not admit anybody is not plain any more: the
//     filter was opened for an address that is the right one once in N times.
//   - As openers, 256 sockets spread over N addresses (of EIM too, as every socket is a mapping), while probes go
//     to the one known: hits become fewer by N, 2.0 with N = 4, so that 86 % of sprays have one and the next
//     spray is another draw. The oracle takes two hits on average for enough. (Openers that arrive at the
//     prober's NAT with a high time to live also pass an ADF filter once in N times.)
//   - As probers against ADF filters, packets come from an address that the filter was opened for once in N
//     times. Where the mapping depends on the port, every probe is a draw of its own, and hits become fewer by
//     N. Where it depends on the address alone, one draw decides on all probes of a socket, and the oracle
//     counts on none.
//
// So of the 81 cells with arbitrary pooling and N = 4 on both sides, those stay that have EIF, or EIM on both
// sides (plain), or EIM on one (spray); two dependent mappings without EIF have no way. Nodes know nothing of
// each other's pooling: they do what they would do with one address each, and after plain rounds that led
// nowhere they had better spray even if those should have sufficed.
package vnet
