package vnet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
)

const (
	eim  = weft.EndpointIndependentMapping
	adm  = weft.AddressDependentMapping
	apdm = weft.AddressAndPortDependentMapping
	eif  = weft.EndpointIndependentFiltering
	adf  = weft.AddressDependentFiltering
	apdf = weft.AddressAndPortDependentFiltering
)

// out sends a packet from inside that has to pass.
func out(t *testing.T, n *NAT, now time.Time, src, dst netip.AddrPort) netip.AddrPort {
	t.Helper()
	outside, v := n.Outbound(now, src, dst)
	if v != Forward {
		t.Fatalf("%v to %v: %v", src, dst, v)
	}
	return outside
}

// judged sends a packet from outside that meets a verdict.
func judged(t *testing.T, n *NAT, now time.Time, src, dst netip.AddrPort, want Verdict) {
	t.Helper()
	if inside, v := n.Inbound(now, src, dst); v != want {
		t.Errorf("%v: %v to %v: %v, for %v; want %v", now.Sub(start), src, dst, v, inside, want)
	}
}

func TestAMappingHasOnePortForWhatItDependsOnAndOthersForOthers(t *testing.T) {
	remotes := []netip.AddrPort{ap("203.0.113.1:1"), ap("203.0.113.1:2"), ap("203.0.113.2:1")}
	for m, want := range map[weft.Mapping]int{eim: 1, adm: 2, apdm: 3} {
		n := newNAT(t, NATConfig{Mapping: m, Filtering: apdf})
		seen := map[netip.AddrPort]bool{}
		for range 3 {
			for _, r := range remotes {
				seen[out(t, n, start, ap("10.0.0.2:5000"), r)] = true
			}
		}
		if len(seen) != want {
			t.Errorf("%v has %d outside endpoints, want %d", m, len(seen), want)
		}
	}
}

func TestAFilterLetsInWhomItsMappingHasWrittenTo(t *testing.T) {
	asked, port, stranger := ap("203.0.113.1:1"), ap("203.0.113.1:2"), ap("203.0.113.2:1")
	for f, want := range map[weft.Filtering][3]Verdict{
		eif:  {Forward, Forward, Forward},
		adf:  {Forward, Forward, DropFiltered},
		apdf: {Forward, DropFiltered, DropFiltered},
	} {
		for i, from := range []netip.AddrPort{asked, port, stranger} {
			n := newNAT(t, NATConfig{Mapping: eim, Filtering: f})
			judged(t, n, start, from, out(t, n, start, ap("10.0.0.2:5000"), asked), want[i])
		}
	}
}

func TestAMappingLivesAsLongAsItsTimeoutAfterItsLastRefresh(t *testing.T) {
	inside, remote, other := ap("10.0.0.2:5000"), ap("203.0.113.1:1"), ap("203.0.113.2:1")
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for _, refresh := range []bool{false, true} {
		n := newNAT(t, NATConfig{Mapping: eim, Filtering: eif, Timeout: 30 * time.Second, RefreshInbound: refresh})
		first := out(t, n, at(0), inside, remote)
		if out(t, n, at(20), inside, remote) != first {
			t.Error("it moved while it was in use")
		}
		judged(t, n, at(49.999), other, first, Forward)
		want := DropNoMapping
		if refresh {
			want = Forward
		}
		judged(t, n, at(50), other, first, want)
		if refresh {
			judged(t, n, at(79.999), other, first, Forward)
			judged(t, n, at(110), other, first, DropNoMapping)
		}
		if out(t, n, at(120), inside, remote) == first {
			t.Error("a new mapping has the random port of the old one")
		}
	}
}

func TestWhatOneSessionKeepsAliveDoesNotKeepAnothersFilterOpen(t *testing.T) {
	n := newNAT(t, NATConfig{Mapping: eim, Filtering: adf, Timeout: 30 * time.Second})
	inside, quiet, busy := ap("10.0.0.2:5000"), ap("203.0.113.1:1"), ap("203.0.113.2:1")
	seen := out(t, n, start, inside, quiet)
	for s := range 4 {
		out(t, n, start.Add(time.Duration(s)*10*time.Second), inside, busy)
	}
	judged(t, n, start.Add(30*time.Second), quiet, seen, DropFiltered)
	judged(t, n, start.Add(30*time.Second), busy, seen, Forward)
}

func TestAHairpinnedPacketHasAnExternalSourceAndPassesTheFilter(t *testing.T) {
	ann, bob, server := ap("10.0.0.2:5000"), ap("10.0.0.3:5000"), ap("203.0.113.1:3478")
	n := newNAT(t, NATConfig{Mapping: eim, Filtering: adf, Hairpin: true})
	annOut, bobOut := out(t, n, start, ann, server), out(t, n, start, bob, server)
	if _, _, v := n.Hairpin(start, ann, bobOut); v != DropFiltered {
		t.Errorf("bob's filter was not asked: %v", v)
	}
	src, dst, v := n.Hairpin(start, bob, annOut)
	if v != HairpinBack || src != bobOut || dst != ann {
		t.Errorf("%v from %v to %v; want from %v to %v", v, src, dst, bobOut, ann)
	}
	if src, dst, v = n.Hairpin(start, ann, bobOut); v != HairpinBack || src != annOut || dst != bob {
		t.Errorf("%v from %v to %v; want from %v to %v", v, src, dst, annOut, bob)
	}
	if _, _, v := newNAT(t, NATConfig{Mapping: eim, Filtering: eif}).Hairpin(start, ann, annOut); v != DropNoHairpin {
		t.Errorf("without hairpinning: %v", v)
	}
}

func TestALateFilterLetsAnswersInAtOnceAndOthersLater(t *testing.T) {
	asked, port := ap("203.0.113.1:1"), ap("203.0.113.1:2")
	for _, f := range []weft.Filtering{eif, adf} {
		n := newNAT(t, NATConfig{Mapping: eim, Filtering: f, OpensLate: 100 * time.Millisecond})
		seen := out(t, n, start, ap("10.0.0.2:5000"), asked)
		judged(t, n, start, asked, seen, Forward)
		judged(t, n, start.Add(99*time.Millisecond), port, seen, DropFiltered)
		judged(t, n, start.Add(100*time.Millisecond), port, seen, Forward)
	}
}

func TestAnUnsolicitedPacketSpoilsItsFiveTupleForAWhile(t *testing.T) {
	inside, server, peer := ap("10.0.0.2:5000"), ap("203.0.113.1:3478"), ap("203.0.113.2:7000")
	n := newNAT(t, NATConfig{Mapping: eim, Filtering: apdf, Spoils: true, Timeout: time.Minute})
	seen := out(t, n, start, inside, server)
	judged(t, n, start, peer, seen, DropFiltered)
	moved := out(t, n, start, inside, peer)
	if moved == seen {
		t.Fatal("the spoiled port was used")
	}
	if again := out(t, n, start.Add(40*time.Second), inside, peer); again != moved {
		t.Errorf("the session moved from %v to %v", moved, again)
	}
	if out(t, n, start, inside, ap("203.0.113.3:1")) != seen {
		t.Error("another's packet spoiled the mapping for everybody")
	}
	// The session's own mapping ends; the socket's lives, for it is used.
	for s := 40; s <= 120; s += 20 {
		if got := out(t, n, start.Add(time.Duration(s)*time.Second), inside, server); got != seen {
			t.Errorf("after %d s the mapping is %v, not %v", s, got, seen)
		}
	}
	if got := out(t, n, start.Add(2*time.Minute), inside, peer); got != seen {
		t.Errorf("what was spoiled 2 minutes ago still is: %v, not %v", got, seen)
	}
	sane := newNAT(t, NATConfig{Mapping: eim, Filtering: apdf})
	seen = out(t, sane, start, inside, server)
	judged(t, sane, start, peer, seen, DropFiltered)
	if out(t, sane, start, inside, peer) != seen {
		t.Error("a NAT that keeps to RFC 4787 was spoiled")
	}
}

func TestAFloodOfUnsolicitedPacketsTakesABoundedPlace(t *testing.T) {
	n := newNAT(t, NATConfig{Mapping: eim, Filtering: apdf, Spoils: true})
	inside := ap("10.0.0.2:5000")
	seen := out(t, n, start, inside, ap("203.0.113.1:3478"))
	remote := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 16), byte(i >> 8)}), uint16(1+i&0xff))
	}
	const flood = maxSpoiled + 1000
	for i := range flood {
		judged(t, n, start, remote(i), seen, DropFiltered)
	}
	if got := len(n.spoiled); got > maxSpoiled+1 {
		t.Errorf("%d tuples are occupied", got)
	}
	if out(t, n, start, inside, remote(0)) != seen || out(t, n, start, inside, remote(flood-1)) == seen {
		t.Error("others than the oldest made room")
	}
}

func TestPortsComeInTheOrderOfTheirAllocation(t *testing.T) {
	server := ap("203.0.113.1:3478")
	for _, step := range []int16{1, 2, 7, -1, -29999} {
		n := newNAT(t, NATConfig{Mapping: eim, Filtering: apdf, Allocation: weft.SequentialAllocation, Step: step})
		last := 0
		for i := range 2000 {
			port := int(out(t, n, start, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), uint16(2000+i)), server).Port())
			if i > 0 && (port-last-int(step))%portCount != 0 {
				t.Fatalf("step %d: %d came after %d", step, port, last)
			}
			last = port
		}
	}
	n := newNAT(t, NATConfig{Mapping: apdm, Filtering: apdf, Allocation: weft.PreservingAllocation})
	if got := out(t, n, start, ap("10.0.0.2:5000"), server).Port(); got != 5000 {
		t.Errorf("port 5000 became %d", got)
	}
	if got := out(t, n, start, ap("10.0.0.3:5000"), server).Port(); got == 5000 {
		t.Error("two hosts have the outside port 5000")
	}
	if got := out(t, n, start, ap("10.0.0.2:5000"), ap("203.0.113.2:1")).Port(); got == 5000 {
		t.Error("two mappings have the outside port 5000")
	}
}

func TestEveryPortIsGivenOnceAndThenNoneIs(t *testing.T) {
	for _, a := range []weft.Allocation{weft.RandomAllocation, weft.SequentialAllocation, weft.PreservingAllocation} {
		c := NATConfig{Mapping: apdm, Filtering: apdf, Allocation: a, Timeout: time.Minute}
		if a == weft.SequentialAllocation {
			c.Step = 6 // divides 64,512: alone, its steps come by a sixth of the ports
		}
		n := newNAT(t, c)
		seen := map[netip.AddrPort]bool{}
		to := func(i int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i >> 12)}), uint16(1+i&0xfff))
		}
		for i := range portCount {
			seen[out(t, n, start, ap("10.0.0.2:5000"), to(i))] = true
		}
		if len(seen) != portCount {
			t.Errorf("%v: %d outside endpoints for %d mappings", a, len(seen), portCount)
		}
		if _, v := n.Outbound(start, ap("10.0.0.2:5000"), ap("192.0.2.1:1")); v != DropTableFull {
			t.Errorf("%v: a mapping without a port: %v", a, v)
		}
		out(t, n, start.Add(time.Minute), ap("10.0.0.2:5000"), ap("192.0.2.1:1"))
	}
}

func TestLimitsHoldAndEndWithMappings(t *testing.T) {
	n := newNAT(t, NATConfig{Mapping: eim, Filtering: apdf, MaxMappings: 3, MaxPerHost: 2, Timeout: time.Minute})
	server := ap("203.0.113.1:3478")
	out(t, n, start, ap("10.0.0.2:1"), server)
	out(t, n, start, ap("10.0.0.2:2"), server)
	if _, v := n.Outbound(start, ap("10.0.0.2:3"), server); v != DropTableFull {
		t.Errorf("a third mapping of one host: %v", v)
	}
	out(t, n, start.Add(30*time.Second), ap("10.0.0.3:1"), server)
	if _, v := n.Outbound(start, ap("10.0.0.4:1"), server); v != DropTableFull {
		t.Errorf("a fourth mapping: %v", v)
	}
	out(t, n, start.Add(time.Minute), ap("10.0.0.2:3"), server)
	out(t, n, start.Add(time.Minute), ap("10.0.0.4:1"), server)
	if _, v := n.Outbound(start.Add(time.Minute), ap("10.0.0.5:1"), server); v != DropTableFull {
		t.Errorf("a fourth mapping again: %v", v)
	}
}

func TestAPoolGivesHostsOrMappingsTheirAddresses(t *testing.T) {
	var pool []netip.Addr
	for i := range 4 {
		pool = append(pool, netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)}))
	}
	count := func(p Pooling, m weft.Mapping, src func(i int) netip.AddrPort, dst func(i int) netip.AddrPort) int {
		n := newNAT(t, NATConfig{Public: pool, Mapping: m, Filtering: apdf, Pooling: p})
		seen := map[netip.Addr]bool{}
		for i := range 200 {
			seen[out(t, n, start, src(i), dst(i)).Addr()] = true
		}
		return len(seen)
	}
	host := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 5000)
	}
	socket := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(5000+i))
	}
	one := func(int) netip.AddrPort { return ap("10.0.0.1:5000") }
	server := func(int) netip.AddrPort { return ap("203.0.113.1:1") }
	port := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, 1}), uint16(1+i))
	}
	address := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 1)
	}
	for _, c := range []struct {
		what string
		got  int
		want int
	}{
		{"paired, many hosts", count(PairedPooling, eim, host, server), 4},
		{"paired, many sockets", count(PairedPooling, apdm, socket, port), 1},
		{"arbitrary, EIM, many sockets", count(ArbitraryPooling, eim, socket, server), 4},
		{"arbitrary, EIM, one socket", count(ArbitraryPooling, eim, one, address), 1},
		{"arbitrary, ADM, one address", count(ArbitraryPooling, adm, one, port), 1},
		{"arbitrary, ADM, many addresses", count(ArbitraryPooling, adm, one, address), 4},
		{"arbitrary, APDM, many ports", count(ArbitraryPooling, apdm, one, port), 4},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d public addresses, want %d", c.what, c.got, c.want)
		}
	}
}

func TestARebindingMovesPortsAndKeepsFlows(t *testing.T) {
	inside, peer := ap("10.0.0.2:5000"), ap("203.0.113.2:7000")
	for _, a := range []weft.Allocation{weft.RandomAllocation, weft.SequentialAllocation, weft.PreservingAllocation} {
		n := newNAT(t, NATConfig{Mapping: eim, Filtering: apdf, Allocation: a})
		old := out(t, n, start, inside, peer)
		n.Rebind(start)
		judged(t, n, start, peer, old, DropNoMapping)
		moved := out(t, n, start, inside, peer)
		if moved == old {
			t.Errorf("%v: it has not moved", a)
		}
		judged(t, n, start, peer, moved, Forward)
		n.Forget()
		judged(t, n, start, peer, moved, DropNoMapping)
	}
}

func TestAFirewallFiltersWithoutTranslating(t *testing.T) {
	inside, peer := ap("[2001:db8::2]:5000"), ap("[2001:db8:1::2]:7000")
	n := newNAT(t, NATConfig{Mapping: weft.NoNAT, Filtering: apdf})
	judged(t, n, start, peer, inside, DropFiltered)
	if got := out(t, n, start, inside, peer); got != inside {
		t.Errorf("it became %v", got)
	}
	judged(t, n, start, peer, inside, Forward)
	judged(t, n, start, ap("[2001:db8:1::2]:7001"), inside, DropFiltered)
	plain := newNAT(t, NATConfig{Mapping: weft.NoNAT})
	judged(t, plain, start, peer, inside, Forward)
}

func TestAnImpossibleNATIsRefusedInASentence(t *testing.T) {
	public := []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	for want, c := range map[string]NATConfig{
		"needs a mapping":             {Filtering: eif, Public: public},
		"needs a filtering":           {Mapping: eim, Public: public},
		"needs a public address":      {Mapping: eim, Filtering: eif},
		"has no public addresses":     {Mapping: weft.NoNAT, Filtering: eif, Public: public},
		"nothing to hairpin":          {Mapping: weft.NoNAT, Filtering: eif, Hairpin: true},
		"is given twice":              {Mapping: eim, Filtering: eif, Public: append(public, public...)},
		"are of one family":           {Mapping: eim, Filtering: eif, Public: append(public, netip.MustParseAddr("2001:db8::1"))},
		"no address that a NAT":       {Mapping: eim, Filtering: eif, Public: []netip.Addr{netip.MustParseAddr("224.0.0.1")}},
		"sequential ports only":       {Mapping: eim, Filtering: eif, Public: public, Step: 2},
		"timeout is between":          {Mapping: eim, Filtering: eif, Public: public, Timeout: -1},
		"opens between":               {Mapping: eim, Filtering: eif, Public: public, OpensLate: -1},
		"limit of mappings":           {Mapping: eim, Filtering: eif, Public: public, MaxPerHost: -1},
		"preserving, sequential or":   {Mapping: eim, Filtering: eif, Public: public, Allocation: 9},
		"pooled paired or arbitrary,": {Mapping: eim, Filtering: eif, Public: public, Pooling: 9},
	} {
		if _, err := NewNAT(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want a sentence with %q", err, want)
		}
	}
}

func TestWhoeverWasNotWrittenToIsNeverLetIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		if c.Filtering == eif {
			c.Filtering = adf
		}
		n, err := NewNAT(c)
		if err != nil {
			t.Fatal(err)
		}
		written := map[string]bool{} // which inside socket to which remote, as much as the filter looks at
		key := func(inside, remote netip.AddrPort) string {
			if c.Filtering == adf {
				return fmt.Sprint(inside, remote.Addr())
			}
			return fmt.Sprint(inside, remote)
		}
		ends := append([]netip.AddrPort(nil), insides...)
		now := start
		for range 200 {
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			remote := rapid.SampledFrom(remotes).Draw(t, "remote")
			if rapid.Bool().Draw(t, "outbound") {
				inside := rapid.SampledFrom(insides).Draw(t, "inside")
				if outside, v := n.Outbound(now, inside, remote); v == Forward {
					written[key(inside, remote)] = true
					ends = append(ends, outside)
				}
			} else if inside, v := n.Inbound(now, remote, rapid.SampledFrom(ends).Draw(t, "to")); v == Forward && !written[key(inside, remote)] {
				t.Fatalf("%v came in to %v, who never wrote to it", remote, inside)
			}
		}
	})
}
