// Package router is a home's, an office's or a carrier's router as a program: lab/vnet's NAT between two Ethernet
// segments, for laboratories in which real programs are to meet NATs that no kernel offers.
//
// # What it does
//
// A [Router] has two legs, Inside and Outside, on which frames come in ([Router.Handle]) and go out (the function
// given to [New]). It answers for its addresses (ARP, neighbour discovery, echoes), finds its neighbours, ages
// packets and says so when their time is over, and translates UDP, TCP and ICMP echoes, each protocol by a
// [vnet.NAT] of its own with the same behaviour. The headers that ICMP errors quote are translated too (RFC 5508),
// packets to its own public addresses are turned back where the NAT hairpins, and IPv6 passes the same filter
// untranslated. Checksums are mended by their difference (RFC 1624), so that a packet that was broken stays so.
//
//	      inside            +--------------------------+     wire: rate, delay, jitter,     outside
//	hosts --------- frame ->| ARP, ND, TTL, NAT, block |---- loss, queue, each direction -> frame ----
//	                        +--------------------------+
//
// The way outside is two wires, one for each direction: what its [vnet.LinkConfig] says happens to every packet, but to no
// ARP and no neighbour discovery, which are the laboratory's own doing. A [Cable] is such a way alone; cut, it carries those
// neither.
//
// # What it refuses
//
// Fragments are dropped and counted: a NAT without reassembly can do nothing else with those that have no ports,
// and nothing in the laboratory sends packets that need them. So are protocols without ports. Everything that is
// dropped is counted by reason ([Router.Counts]) and told to who traces ([Config.Trace]).
//
// # How its parts meet
//
// Nothing here opens a device, starts a goroutine or asks a clock: who runs a router gives it frames and the time,
// and wakes it when [Router.Poll] asks for that. lab/netns does so on TAP devices.
package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"time"

	"weft"
	"weft/lab/vnet"
)

// A Leg is one of the two sides of a router or cable.
type Leg uint8

// The legs.
const (
	Inside Leg = iota
	Outside
)

// String is the leg's name.
func (l Leg) String() string {
	if l == Inside {
		return "inside"
	}
	return "outside"
}

// MarshalText writes the name.
func (l Leg) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// An Interface is the router's place on a segment. The zero Prefix6 is none.
type Interface struct {
	MAC              MAC          `json:"mac"`
	Prefix4, Prefix6 netip.Prefix // its address, with the length of the segment's prefix
}

// A Route is the way to a network that is not on a segment itself.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// A Block is which UDP packets a router lets nobody send through it. The zero Block is none.
type Block struct {
	All       bool       // every one,
	ExceptDNS bool       // but not those from and to port 53
	A, B      netip.Addr // or those between two addresses, as they are on the inner side
}

// Config is what a router is made from.
type Config struct {
	Name            string
	Inside, Outside Interface
	// Gateways outside lead to whatever is on no segment of the router's.
	Gateway4, Gateway6 netip.Addr
	// NAT is what it does with IPv4. Where it translates, Public holds the outside interface's own address, and
	// may hold more of that segment's. IPv6 is filtered alike.
	NAT    vnet.NATConfig
	Link   vnet.LinkConfig  // of the way outside
	LinkIn *vnet.LinkConfig // of the way inwards, where that differs; else nil
	// Hops is how many routers the way outside counts for in a packet's time to live, in each direction: those of
	// the internet, of which the laboratory has none.
	Hops uint8
	Seed uint64 // of the link's accidents
	// Trace is told of every packet that the router judges, if it is not nil.
	Trace func(Event) `json:"-"`
}

// An Event is what became of one packet.
type Event struct {
	At       time.Time      `json:"at"`
	Router   string         `json:"router"`
	From     Leg            `json:"from"` // by which leg it came
	Protocol string         `json:"protocol"`
	Src      netip.AddrPort `json:"src"` // as it came
	Dst      netip.AddrPort `json:"dst"`
	NewSrc   netip.AddrPort `json:"new_src,omitzero"` // as it went on, if it did
	NewDst   netip.AddrPort `json:"new_dst,omitzero"`
	TTL      uint8          `json:"ttl"` // as it came
	Bytes    int            `json:"bytes"`
	Verdict  string         `json:"verdict"` // in words; those of drops are counted in Counts
	Dropped  bool           `json:"dropped,omitempty"`
	// Payload is what follows the UDP header, as it came; it is good until Trace returns.
	Payload []byte `json:"-"`
}

// Verdicts that lab/vnet has no word for, because addresses alone do not show them.
const (
	malformedVerdict   = "dropped: malformed"
	unsupportedVerdict = "dropped: a protocol without ports"
	fragmentVerdict    = "dropped: a fragment"
	unresolvedVerdict  = "dropped: the next hop does not answer"
	strayVerdict       = "dropped: an ICMP message about nothing that passed"
	localVerdict       = "for the router itself"
)

// Timeouts that the NAT's configuration, which speaks of UDP, does not give.
const (
	tcpTimeout  = 2*time.Hour + 4*time.Minute // RFC 5382 REQ-5
	echoTimeout = time.Minute                 // RFC 5508 REQ-2
)

// errorRate and errorBurst bound the ICMP errors that a router sends a second (RFC 1812 section 4.3.2.8).
const (
	errorRate  = 100
	errorBurst = 50
)

// nats are the state of one address family, a NAT for each protocol.
type nats struct{ udp, tcp, echo *vnet.NAT }

type leg struct {
	Interface
	public     []netip.Addr // further addresses to answer for
	routes     []Route
	neighbours map[netip.Addr]*neighbour
}

// A Router is one router. Its methods are for one goroutine at a time.
type Router struct {
	config    Config
	legs      [2]leg
	four, six nats
	block     Block
	up, down  wire // outwards, inwards
	out       func(Leg, []byte)
	searching bool // for a neighbour
	counts    map[string]uint64
	errors    float64 // that may be sent now
	errorsAt  time.Time
}

// New makes a router, whose frames go to out; they are out's until it returns only. The error is a sentence.
func New(c Config, out func(Leg, []byte)) (*Router, error) {
	r := &Router{config: c, out: out, counts: map[string]uint64{}, errors: errorBurst}
	if !c.Inside.Prefix4.Addr().Is4() || !c.Outside.Prefix4.Addr().Is4() {
		return nil, errors.New("a router needs an IPv4 address on each leg")
	}
	r.legs[Inside] = leg{Interface: c.Inside, neighbours: map[netip.Addr]*neighbour{}}
	r.legs[Outside] = leg{Interface: c.Outside, public: c.NAT.Public, neighbours: map[netip.Addr]*neighbour{}}
	for _, a := range c.NAT.Public {
		if !c.Outside.Prefix4.Contains(a) {
			return nil, fmt.Errorf("the public address %v is not in %v, the network outside", a, c.Outside.Prefix4.Masked())
		}
	}
	r.block.All, r.config.NAT.BlockUDP = c.NAT.BlockUDP, false
	if err := r.newNATs(); err != nil {
		return nil, err
	}
	inwards := c.Link
	if c.LinkIn != nil {
		inwards = *c.LinkIn
	}
	if err := r.SetLinks(c.Link, inwards); err != nil {
		return nil, err
	}
	r.up.rng = rand.New(rand.NewPCG(c.Seed, 1))
	r.down.rng = rand.New(rand.NewPCG(c.Seed, 2))
	return r, nil
}

func (r *Router) newNATs() error {
	four := r.config.NAT
	six := four
	six.Mapping, six.Public, six.Hairpin, six.Step, six.Allocation = weft.NoNAT, nil, false, 0, 0
	for _, f := range []struct {
		to *nats
		c  vnet.NATConfig
	}{{&r.four, four}, {&r.six, six}} {
		var err [3]error
		f.to.udp, err[0] = vnet.NewNAT(f.c)
		// What is said of late filters, spoiled ports and limits is said of UDP.
		f.c.OpensLate, f.c.Spoils, f.c.MaxMappings, f.c.MaxPerHost = 0, false, 0, 0
		f.c.RefreshInbound, f.c.Timeout = true, tcpTimeout
		f.to.tcp, err[1] = vnet.NewNAT(f.c)
		f.c.Timeout = echoTimeout
		f.to.echo, err[2] = vnet.NewNAT(f.c)
		if err := errors.Join(err[:]...); err != nil {
			return fmt.Errorf("making the router %s: %w", r.config.Name, err)
		}
	}
	return nil
}

// SetLink changes the way outside, in both directions. What is under way arrives when it would have.
func (r *Router) SetLink(l vnet.LinkConfig) error { return r.SetLinks(l, l) }

// SetLinks is SetLink with a configuration for each direction: outwards, and inwards.
func (r *Router) SetLinks(out, in vnet.LinkConfig) error {
	if err := errors.Join(out.Check(), in.Check()); err != nil {
		return err
	}
	r.up.link, r.down.link = out, in
	return nil
}

// SetUp plugs the way outside in, or pulls it out.
func (r *Router) SetUp(up bool) { r.SetCut(!up, !up) }

// SetCut lets nothing pass outwards, or inwards, or lets it pass again. What is under way arrives.
func (r *Router) SetCut(out, in bool) { r.up.down, r.down.down = out, in }

// Links are the two directions of the way outside as they are now.
func (r *Router) Links() (out, in vnet.LinkConfig) { return r.up.link, r.down.link }

// LinkCounts are what the two directions of the way outside have done so far.
func (r *Router) LinkCounts() (out, in WireCounts) { return r.up.WireCounts, r.down.WireCounts }

// SetBlock changes which UDP packets are let through by nobody.
func (r *Router) SetBlock(b Block) { r.block = b }

// Forget drops every mapping and every state of the filter, as a restart does.
func (r *Router) Forget() {
	for _, n := range [...]*vnet.NAT{r.four.udp, r.four.tcp, r.four.echo, r.six.udp, r.six.tcp, r.six.echo} {
		n.Forget()
	}
}

// Rebind moves every mapping to another port, in mid-flow.
func (r *Router) Rebind(now time.Time) {
	r.four.udp.Rebind(now)
	r.four.tcp.Rebind(now)
	r.four.echo.Rebind(now)
}

// SetTrace changes who is told of packets.
func (r *Router) SetTrace(f func(Event)) { r.config.Trace = f }

// Readdress gives it other public addresses, the first of which is the outside interface's own: mappings and the
// filter's state are gone.
func (r *Router) Readdress(public []netip.Addr) error {
	old := r.config
	r.config.NAT.Public = public
	if len(public) == 0 || len(old.NAT.Public) == 0 {
		return errors.New("only a router that translates has public addresses, and it needs one")
	}
	if err := r.newNATs(); err != nil {
		r.config = old
		return err
	}
	r.legs[Outside].public = public
	r.legs[Outside].Prefix4 = netip.PrefixFrom(public[0], r.legs[Outside].Prefix4.Bits())
	return nil
}

// AddRoute tells the way to a network behind another router on a leg.
func (r *Router) AddRoute(on Leg, route Route) {
	r.legs[on].routes = append(r.legs[on].routes, route)
}

// Counts says how many packets met each verdict.
func (r *Router) Counts() map[string]uint64 { return maps.Clone(r.counts) }

func (r *Router) count(verdict string) { r.counts[verdict]++ }

// Handle takes a frame that came in by a leg. It may write to the frame, and keeps nothing of it.
func (r *Router) Handle(now time.Time, from Leg, frame []byte) {
	if len(frame) < etherLen {
		r.count(malformedVerdict)
		return
	}
	if to := MAC(frame[:6]); to != r.legs[from].MAC && to[0]&1 == 0 {
		return // flooded by the switch, and not for us
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case typeARP:
		r.handleARP(now, from, frame)
		return
	case typeIPv6:
		if p := parse6(frame[etherLen:], false); p.icmp == icmp6Solicit || p.icmp == icmp6Advertise {
			r.handleDiscovery(now, from, frame, p)
			return
		}
	case typeIPv4:
	default:
		return
	}
	if from == Outside {
		if p := r.down.push(now, frame); p != passes {
			r.stopped(now, from, p, frame)
			return
		}
	}
	r.route(now, from, frame)
}

// Poll does what is due, and says when to come again; zero: only with the next frame.
func (r *Router) Poll(now time.Time) (next time.Time) {
	for f := r.down.pop(now); f != nil; f = r.down.pop(now) {
		r.route(now, Outside, f)
		r.down.release(f)
	}
	for f := r.up.pop(now); f != nil; f = r.up.pop(now) {
		r.out(Outside, f)
		r.up.release(f)
	}
	next = r.search(now)
	return earliest(earliest(next, r.up.next()), r.down.next())
}

// earliest is the earlier of two times; a zero one is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// stopped accounts for a packet that a wire has not let pass at once.
func (r *Router) stopped(now time.Time, from Leg, p passage, frame []byte) {
	if p == held {
		return
	}
	verdict := map[passage]vnet.Verdict{lost: vnet.DropLost, overflows: vnet.DropQueue, unplugged: vnet.DropDown}[p].String()
	r.drop(now, from, parse(frame[etherLen:], binary.BigEndian.Uint16(frame[12:]) == typeIPv6, false), verdict)
}

func (r *Router) drop(now time.Time, from Leg, p packet, verdict string) {
	r.count(verdict)
	if r.config.Trace != nil {
		e := r.event(now, from, p, verdict)
		e.Dropped = true
		r.config.Trace(e)
	}
}

func (r *Router) event(now time.Time, from Leg, p packet, verdict string) Event {
	e := Event{At: now, Router: r.config.Name, From: from, Protocol: p.protocol(), Src: p.src, Dst: p.dst,
		Bytes: len(p.ip), Verdict: verdict}
	if p.shape != malformed {
		e.TTL = p.ttl()
	}
	if p.shape == flow && p.proto == protoUDP {
		e.Payload = p.l4[8:]
	}
	return e
}

// protocol is its name.
func (p packet) protocol() string {
	switch p.proto {
	case protoUDP:
		return "udp"
	case protoTCP:
		return "tcp"
	case protoICMP, protoICM6:
		return "icmp"
	}
	return "other"
}

// owns reports whether the leg has the address.
func (l *leg) owns(a netip.Addr) bool {
	if a == l.Prefix4.Addr() || l.Prefix6.IsValid() && a == l.Prefix6.Addr() {
		return true
	}
	for _, p := range l.public {
		if p == a {
			return true
		}
	}
	return false
}

// reaches reports whether the address is one of the leg's segment.
func (l *leg) reaches(a netip.Addr) bool { return l.Prefix4.Contains(a) || l.Prefix6.Contains(a) }

func (l *leg) addr4() netip.Addr { return l.Prefix4.Addr() }

// hop is the next hop to an address by a leg; invalid: there is none.
func (r *Router) hop(by Leg, to netip.Addr) netip.Addr {
	l := &r.legs[by]
	if l.reaches(to) {
		return to
	}
	for _, route := range l.routes {
		if route.To.Contains(to) {
			return route.Via
		}
	}
	switch {
	case by == Inside:
		return netip.Addr{}
	case to.Is4():
		return r.config.Gateway4
	}
	return r.config.Gateway6
}
