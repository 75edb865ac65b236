package path

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft"
	"weft/lab/vnet"
	"weft/wire"
)

// An uplink is one of several links of a host, with a NAT of its own.
type uplink struct {
	id     weft.LinkID
	inside netip.AddrPort
	nat    *vnet.NAT
	cut    bool // nothing gets through any more, and nobody says so
}

// homed gives a host several links, numbered from 1.
func (w *world) homed(h *host, kinds ...natKind) {
	for i, k := range kinds {
		at := slices.Index(w.hosts, h)
		c := k.config()
		c.Seed, c.Public = w.rng.Uint64(), []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(100 + 10*at + i)})}
		n, err := vnet.NewNAT(c)
		if err != nil {
			w.t.Fatal(err)
		}
		inside := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(1 + at), byte(1 + i), 2}), 41641)
		h.uplinks = append(h.uplinks, &uplink{id: weft.LinkID(i + 1), inside: inside, nat: n})
	}
	h.inside = h.uplinks[0].inside // by which the relay is reached
}

// uplink is the link of an inside address; nil if the host has but one.
func (h *host) uplink(ip netip.Addr) *uplink {
	for _, u := range h.uplinks {
		if u.inside.Addr() == ip {
			return u
		}
	}
	return nil
}

// leaves is the inside address of a link.
func (h *host) leaves(id weft.LinkID) netip.AddrPort {
	if id == 0 && len(h.uplinks) > 0 {
		return h.uplinks[0].inside // as the routes say
	}
	for _, u := range h.uplinks {
		if u.id == id {
			return u.inside
		}
	}
	return netip.AddrPort{}
}

func (h *host) linkCandidates() (list []weft.Candidate) {
	for _, u := range h.uplinks {
		list = append(list, weft.Candidate{Addr: u.inside, Kind: weft.Host, Link: u.id})
		if outside, ok := h.out(u.inside, relayAddr); ok {
			list = append(list, weft.Candidate{Addr: outside, Kind: weft.ServerReflexive, Link: u.id})
		}
	}
	return list
}

func (h *host) linkNATs() (list []weft.LinkNAT) {
	for _, u := range h.uplinks {
		list = append(list, weft.LinkNAT{Link: u.id, NAT: u.nat.Config().NAT()})
	}
	slices.SortStableFunc(list, func(a, b weft.LinkNAT) int { // first that by which the relay sees it
		return rank(h.leaves(a.Link) != h.inside) - rank(h.leaves(b.Link) != h.inside)
	})
	return list
}

// inUse is the link that a host's path leaves by; nil if it is not direct.
func (h *host) inUse() *uplink {
	via := h.agent.Selected()
	if via.Method != weft.Direct {
		return nil
	}
	for _, u := range h.uplinks {
		if u.id == via.Link || via.Link >= FirstSpare && u.inside.Addr() == h.spares[via.Link].Addr() {
			return u
		}
	}
	return nil
}

// arrivesAt is the link of a host that the other's path arrives by.
func (h *host) arrivesAt() *uplink {
	via := h.w.other(h).agent.Selected()
	for _, u := range h.uplinks {
		if via.Method == weft.Direct && u.nat.Owns(via.Addr.Addr()) {
			return u
		}
	}
	return nil
}

var fullCone = natKind{weft.EndpointIndependentMapping, weft.EndpointIndependentFiltering}

func TestWhenALinkFailsUnderThePathAnotherTakesOverAtOnce(t *testing.T) {
	forSeeds(t, 40, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		kinds := []natKind{portRestricted, {weft.EndpointIndependentMapping, weft.AddressDependentFiltering}, fullCone}
		pick := func() natKind { return kinds[w.rng.IntN(len(kinds))] }
		w.homed(w.a, pick(), pick())
		switch w.rng.IntN(2) {
		case 0:
			w.behind(w.b, pick().config())
		default:
			w.homed(w.b, pick(), pick())
		}
		w.bootBoth()
		w.run(200 * time.Millisecond)
		w.talkBoth(10 * time.Minute)
		w.until(3*time.Second, "both direct", w.bothDirect)
		// Longer than NATs remember, so that what stands by is there because it is kept so.
		w.run(time.Duration(3+w.rng.IntN(120)) * time.Second)
		for _, h := range w.hosts {
			h.switches = nil
		}
		u := w.a.inUse()
		if u == nil {
			w.failf("a is not direct by a link: %v", w.a.agent.Selected())
		}
		cut := w.now
		u.cut = true
		if w.rng.IntN(2) == 0 { // the relay goes with it
			w.a.noStream = true
			w.a.inside = u.inside
		} else {
			w.a.inside = w.a.uplinks[2-u.id].inside
		}
		w.note("cut link %d of a", u.id)
		w.run(10 * time.Second)
		w.needOutageBelow(1500*time.Millisecond, cut, 10*time.Second)
		w.needSwitches(2)
		if !w.bothDirect() || w.a.inUse() == u || w.a.arrivesAt() == u {
			w.failf("it goes by %v and %v", w.a.agent.Selected(), w.b.agent.Selected())
		}
		// What comes back is known to work again, and can take over in turn.
		u.cut = false
		w.a.inside, w.a.noStream = u.inside, false
		w.run(40 * time.Second)
		u = w.a.inUse()
		u.cut = true
		w.note("cut link %d of a", u.id)
		cut = w.now
		w.run(10 * time.Second)
		w.needOutageBelow(1500*time.Millisecond, cut, 10*time.Second)
	})
}

func TestALinkThatGoesAwayTakesNothingWithIt(t *testing.T) {
	forSeeds(t, 20, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.homed(w.a, portRestricted, portRestricted)
		w.behind(w.b, portRestricted.config())
		w.bootBoth()
		w.talkBoth(10 * time.Minute)
		w.until(3*time.Second, "both direct", w.bothDirect)
		w.run(time.Minute)
		u := w.a.inUse()
		u.cut = true
		w.a.uplinks = slices.DeleteFunc(w.a.uplinks, func(x *uplink) bool { return x == u })
		w.a.inside = w.a.uplinks[0].inside
		w.a.agent.SetLocal(w.now, w.a.candidates()) // netlink said so
		w.a.agent.SetNATs(w.now, w.a.linkNATs())
		w.a.agent.NetworkChanged(w.now)
		w.a.poll()
		if via := w.a.agent.Selected(); via.Method != weft.Direct || via.Link != w.a.uplinks[0].id {
			w.failf("it goes by %v", via)
		}
		cut := w.now
		w.run(10 * time.Second)
		w.needOutageBelow(1500*time.Millisecond, cut, 10*time.Second)
		if !w.bothDirect() {
			w.failf("not direct")
		}
	})
}

func TestTheKinderLinkLetsTwoNodesMeet(t *testing.T) {
	symmetric := natKind{weft.AddressAndPortDependentMapping, weft.AddressAndPortDependentFiltering}
	forSeeds(t, 20, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.homed(w.a, symmetric, portRestricted)
		w.homed(w.b, symmetric, portRestricted)
		w.a.eager, w.b.eager = true, true
		w.bootBoth()
		w.until(3*time.Second, "both direct", w.bothDirect)
		if a, b := w.a.inUse(), w.b.inUse(); a.id != 2 && b.id != 2 {
			w.failf("they met by links %d and %d", a.id, b.id)
		}
		for _, h := range w.hosts {
			if s := h.agent.Snapshot(w.now); !slices.Equal(s.PeerNATs, w.other(h).linkNATs()) || !slices.Equal(s.OwnNATs, h.linkNATs()) {
				w.failf("%s knows of %v and %v", h.name, s.OwnNATs, s.PeerNATs)
			}
		}
	})
}

func TestASprayLeavesByTheLinkThatItIsMeantFor(t *testing.T) {
	symmetric := natKind{weft.AddressAndPortDependentMapping, weft.AddressAndPortDependentFiltering}
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.homed(w.a, symmetric, symmetric)
		by := w.a.uplinks[w.rng.IntN(2)]
		w.a.inside = by.inside
		w.behind(w.b, []natKind{
			{weft.EndpointIndependentMapping, weft.AddressAndPortDependentFiltering}, // a may open
			{weft.AddressAndPortDependentMapping, weft.AddressDependentFiltering},    // a has to probe
		}[w.rng.IntN(2)].config())
		w.a.eager, w.b.eager = true, true
		w.bootBoth()
		w.until(20*time.Second, "both direct", w.bothDirect)
		if via := w.a.agent.Selected(); w.a.inUse() != by {
			w.failf("a goes by %v", via)
		}
	})
}

func TestANodeWithOneLinkSendsNoMoreThanBefore(t *testing.T) {
	r := newRig(t)
	r.SetNAT(r.now, portRestricted.config().NAT())
	r.handle(relayUDP, wire.Candidates{Session: 9, Seq: 1, WantReply: true, List: candidates(weft.ServerReflexive, "203.0.113.1:5", "203.0.113.2:5")})
	used, other := direct("203.0.113.1:5"), direct("203.0.113.2:5")
	r.Want(r.now)
	r.play(5*time.Second, map[weft.Via]time.Duration{used: 20 * time.Millisecond, other: 30 * time.Millisecond})
	for _, x := range r.sent {
		if _, ok := x.Message.(wire.Links); ok {
			t.Error("it tells of links")
		}
	}
	r.Observe(r.now, []Traffic{{Via: used, RxPackets: 5, RxBytes: 500}})
	r.play(50*time.Second, map[weft.Via]time.Duration{used: 20 * time.Millisecond, other: 30 * time.Millisecond})
	if n := len(pings(r.sent, other)); n != 0 {
		t.Errorf("%d pings keep another way warm that leaves and arrives by the same links", n)
	}
	// It has two links itself, or the peer has: then one is kept warm.
	r.SetLocal(r.now, []weft.Candidate{{Addr: addr("192.168.1.2:41641"), Kind: weft.Host}, {Addr: addr("192.168.9.2:41641"), Kind: weft.Host, Link: 1}})
	second := weft.DirectVia(1, used.Addr)
	all := map[weft.Via]time.Duration{used: 20 * time.Millisecond, other: 30 * time.Millisecond, second: 40 * time.Millisecond}
	r.play(5*time.Second, all)
	r.play(time.Minute, all)
	if n := len(pings(r.sent, second)); n < 3 || n > 6 || len(pings(r.sent, other)) > 1 {
		t.Errorf("%d pings in a minute keep the other link warm, and %d another way", n, len(pings(r.sent, other)))
	}
	r.SetLocal(r.now, r.local[:1])
	r.handle(relayUDP, wire.Candidates{Session: 9, Seq: 2, List: []weft.Candidate{
		{Addr: used.Addr, Kind: weft.ServerReflexive, Link: 1}, {Addr: other.Addr, Kind: weft.ServerReflexive, Link: 2},
	}})
	r.play(5*time.Second, map[weft.Via]time.Duration{used: 20 * time.Millisecond, other: 30 * time.Millisecond})
	r.play(time.Minute, map[weft.Via]time.Duration{used: 20 * time.Millisecond, other: 30 * time.Millisecond})
	if n := len(pings(r.sent, other)); n < 3 || n > 6 {
		t.Errorf("%d pings in a minute keep the other way warm", n)
	}
}

func TestWhatIsSaidOfLinksGoesWithTheSessionThatSaidIt(t *testing.T) {
	r := newRig(t)
	said := func(session, seq uint32, m weft.Mapping) wire.Links {
		return wire.Links{Session: session, Seq: seq, List: []weft.LinkNAT{{Link: 1, NAT: weft.NAT{Mapping: m}}}}
	}
	peers := func() weft.Mapping {
		list := r.Snapshot(r.now).PeerNATs
		if len(list) == 0 {
			return weft.MappingUnknown
		}
		return list[0].NAT.Mapping
	}
	r.handle(relayUDP, said(9, 1, weft.NoNAT)) // overtook its candidates
	if peers() != weft.MappingUnknown {
		t.Error("known before its session was")
	}
	r.handle(relayUDP, wire.Candidates{Session: 9, Seq: 1})
	if peers() != weft.NoNAT {
		t.Error("not known")
	}
	r.handle(relayUDP, said(9, 3, weft.EndpointIndependentMapping))
	r.handle(relayUDP, said(9, 2, weft.AddressDependentMapping)) // late
	if peers() != weft.EndpointIndependentMapping {
		t.Errorf("it is %v", peers())
	}
	r.handle(relayUDP, wire.Candidates{Session: 10, Seq: 1})
	if peers() != weft.MappingUnknown {
		t.Error("known of a session that is no more")
	}
	r.handle(relayUDP, said(9, 9, weft.NoNAT)) // somebody repeats it
	r.handle(relayUDP, said(10, 1, weft.AddressDependentMapping))
	if peers() != weft.AddressDependentMapping {
		t.Errorf("it is %v", peers())
	}
}

// A route that has no link is left for one of a link's own without a gap.
func TestLinksThatAppearTakeOverFromSocketsOnNone(t *testing.T) {
	r := newRig(t)
	r.handle(relayUDP, wire.Candidates{Session: 9, Seq: 1, List: candidates(weft.ServerReflexive, "203.0.113.1:5")})
	old := direct("203.0.113.1:5")
	r.Want(r.now)
	r.play(3*time.Second, map[weft.Via]time.Duration{old: 20 * time.Millisecond})
	if r.Selected() != old {
		t.Fatalf("selected is %v", r.Selected())
	}
	r.SetLocal(r.now, []weft.Candidate{{Addr: addr("192.168.1.2:41641"), Kind: weft.Host, Link: 1}, {Addr: addr("192.168.9.2:41641"), Kind: weft.Host, Link: 2}})
	r.poll()
	if r.Selected() != old {
		t.Fatalf("it was left at once, for %v", r.Selected())
	}
	rtts := map[weft.Via]time.Duration{weft.DirectVia(1, old.Addr): 20 * time.Millisecond, weft.DirectVia(2, old.Addr): 25 * time.Millisecond}
	before := len(r.choice.switches)
	r.play(40*time.Second, rtts) // answers to the old one come by link 1 now, which proves nothing of it
	if via := r.Selected(); via != weft.DirectVia(1, old.Addr) {
		t.Errorf("selected is %v", via)
	}
	if s := r.choice.switches[before:]; len(s) != 1 || s[0].From != old {
		t.Errorf("switches %+v", s)
	}
	if slices.ContainsFunc(r.pairs, func(p *pair) bool { return p.via == old }) {
		r.SetLocal(r.now, r.local[:1])
		if slices.ContainsFunc(r.pairs, func(p *pair) bool { return p.via == old }) {
			t.Error("it is kept for ever")
		}
	}
}
