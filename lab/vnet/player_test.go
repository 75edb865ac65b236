package vnet

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"weft"
)

// A chain is what one player's packets pass, from its host outwards.
type chain struct {
	host netip.Addr
	nats []*NAT
}

func newChain(t testing.TB, side int, seed uint64, configs ...NATConfig) *chain {
	c := &chain{host: netip.AddrFrom4([4]byte{10, byte(side), 0, 2})}
	for i, cfg := range configs {
		if cfg.Public == nil && cfg.Mapping != weft.NoNAT {
			cfg.Public = []netip.Addr{netip.AddrFrom4([4]byte{100, byte(64 + i), byte(side), 1})}
			if i == len(configs)-1 {
				cfg.Public[0] = netip.AddrFrom4([4]byte{198, 51, 100, byte(side)})
			}
		}
		cfg.Seed = seed*1000 + uint64(side*10+i)
		c.nats = append(c.nats, newNAT(t, cfg))
	}
	return c
}

// out is the source of what a socket sends, outside of all NATs.
func (c *chain) out(now time.Time, port uint16, dst netip.AddrPort) (netip.AddrPort, bool) {
	src := netip.AddrPortFrom(c.host, port)
	for _, n := range c.nats {
		var v Verdict
		if src, v = n.Outbound(now, src, dst); v != Forward {
			return src, false
		}
	}
	return src, true
}

// in is the socket that a packet from outside comes to.
func (c *chain) in(now time.Time, src, dst netip.AddrPort) (port uint16, ok bool) {
	for i := len(c.nats) - 1; i >= 0; i-- {
		var v Verdict
		if dst, v = c.nats[i].Inbound(now, src, dst); v != Forward {
			return 0, false
		}
	}
	return dst.Port(), dst.Addr() == c.host
}

var stunServers = [...]netip.AddrPort{ap("192.0.2.1:3478"), ap("192.0.2.2:3478")}

const playerPort = 41641

// playPlain has two sockets send to each other's known address, and to wherever packets come from, and reports
// whether a packet and its reply passed. Who sends first in a round is up to chance.
func playPlain(a, b *chain, rng *rand.Rand) bool {
	now := start
	players := [2]*chain{a, b}
	var targets [2][]netip.AddrPort // of each, at the other
	for i, c := range players {
		known, ok := c.out(now, playerPort, stunServers[0])
		if !ok {
			return false
		}
		targets[1-i] = append(targets[1-i], known)
	}
	// send sends from i's socket and reports whether it arrived, and whether a reply would.
	send := func(i int, to netip.AddrPort) bool {
		src, ok := players[i].out(now, playerPort, to)
		if !ok {
			return false
		}
		if port, ok := players[1-i].in(now, src, to); !ok || port != playerPort {
			return false
		}
		if !containsEndpoint(targets[1-i], src) {
			targets[1-i] = append(targets[1-i], src)
		}
		back, ok := players[1-i].out(now, playerPort, src)
		if !ok || back != to {
			return false
		}
		port, ok := players[i].in(now, back, src)
		return ok && port == playerPort
	}
	for range 6 {
		now = now.Add(150 * time.Millisecond)
		first := rng.IntN(2)
		for _, i := range [2]int{first, 1 - first} {
			for j := 0; j < len(targets[i]); j++ {
				if send(i, targets[i][j]) {
					return true
				}
			}
		}
	}
	return false
}

func containsEndpoint(list []netip.AddrPort, e netip.AddrPort) bool {
	for _, x := range list {
		if x == e {
			return true
		}
	}
	return false
}

// playSpray has o open sockets towards p's known address, and p probe o's known IP address.
func playSpray(o, p *chain, rng *rand.Rand) bool {
	now := start
	oKnown, _ := o.out(now, playerPort, stunServers[0])
	pKnown, _ := p.out(now, playerPort, stunServers[0])
	for i := range SprayOpeners {
		o.out(now, uint16(20000+i), pKnown) // with a low time to live: it does not arrive
	}
	ports := rng.Perm(portCount)
	for i := range SprayProbes {
		to := netip.AddrPortFrom(oKnown.Addr(), uint16(lowestPort+ports[i]))
		src, ok := p.out(now, playerPort, to)
		if !ok {
			continue
		}
		port, ok := o.in(now, src, to)
		if !ok {
			continue
		}
		back, ok := o.out(now, port, src)
		if !ok || back != to {
			continue
		}
		if port, ok := p.in(now, back, src); ok && port == playerPort {
			return true
		}
	}
	return false
}

// playPredict has both foretell the ports that fresh sockets get, and send there. How, is known of the NATs: a
// socket's own port where all preserve it, or else by the step of the outermost that does not.
func playPredict(a, b *chain) bool {
	now := start
	const fresh = 50000
	players := [2]*chain{a, b}
	var expected [2]netip.AddrPort
	for i, c := range players {
		known, ok := c.out(now, playerPort, stunServers[0])
		if !ok {
			return false
		}
		expected[i] = netip.AddrPortFrom(known.Addr(), fresh)
		for j := len(c.nats) - 1; j >= 0; j-- {
			n := c.nats[j].Config()
			if n.Mapping == weft.NoNAT || n.Allocation == weft.PreservingAllocation {
				continue
			}
			if n.Allocation != weft.SequentialAllocation {
				return false
			}
			last, _ := c.out(now, fresh, stunServers[0])
			expected[i] = netip.AddrPortFrom(last.Addr(), stepFrom(last.Port(), int(n.Step)))
			break
		}
	}
	arrived := 0
	for range 2 {
		for i, c := range players {
			if src, ok := c.out(now, fresh, expected[1-i]); ok {
				if port, ok := players[1-i].in(now, src, expected[1-i]); ok && port == fresh {
					arrived |= 1 << i
				}
			}
		}
	}
	return arrived == 3
}

// play is what the ways lead to, of several the cheapest; spraying is tried a few times, with all roles.
func play(t testing.TB, a, b []NATConfig, rng *rand.Rand) Way {
	fresh := func() (*chain, *chain) {
		seed := rng.Uint64() % 1_000_000
		return newChain(t, 1, seed, a...), newChain(t, 2, seed, b...)
	}
	if x, y := fresh(); playPlain(x, y, rng) {
		return Plain
	}
	for range 2 {
		if x, y := fresh(); playSpray(x, y, rng) {
			return Spray
		}
		if x, y := fresh(); playSpray(y, x, rng) {
			return Spray
		}
	}
	if x, y := fresh(); playPredict(x, y) {
		return Predict
	}
	return Never
}

func TestAll81CellsAreWhatTheOracleSays(t *testing.T) {
	names, configs := kinds()
	for _, alloc := range []weft.Allocation{weft.RandomAllocation, weft.SequentialAllocation, weft.PreservingAllocation} {
		rng := rand.New(rand.NewPCG(81, uint64(alloc)))
		count := map[Way]int{}
		for _, x := range names {
			for _, y := range names {
				a, b := configs[x], configs[y]
				a.Allocation, b.Allocation = alloc, alloc
				want, why := Possible(Side{NATs: []NATConfig{a}}, Side{NATs: []NATConfig{b}})
				if got := play(t, []NATConfig{a}, []NATConfig{b}, rng); got != want {
					t.Errorf("%v ports, %s with %s: %v; the oracle says %v, as %s", alloc, x, y, got, want, why)
				}
				count[want]++
			}
		}
		t.Logf("%v ports: %v", alloc, count)
	}
}

func TestPlainIsWhatTheOracleSaysForAllPairsOfTwoNATsInARow(t *testing.T) {
	names, configs := kinds()
	rng := rand.New(rand.NewPCG(6561, 0))
	var chains [][2]string
	for _, inner := range names {
		for _, outer := range names {
			chains = append(chains, [2]string{inner, outer})
		}
	}
	count := map[bool]int{}
	for i, x := range chains {
		for _, y := range chains[i:] {
			a := []NATConfig{configs[x[0]], configs[x[1]]}
			b := []NATConfig{configs[y[0]], configs[y[1]]}
			way, why := Possible(Side{NATs: a}, Side{NATs: b})
			seed := rng.Uint64() % 1_000_000
			got := playPlain(newChain(t, 1, seed, a...), newChain(t, 2, seed, b...), rng)
			if got != (way == Plain) {
				t.Fatalf("%v with %v: plain %v; the oracle says %v, as %s", x, y, got, way, why)
			}
			count[got]++
		}
	}
	t.Logf("plain: %v", count)
}

func TestAnythingOfThreeNATsAndPoolsIsWhatTheOracleSays(t *testing.T) {
	names, configs := kinds()
	rng := rand.New(rand.NewPCG(3, 3))
	allocations := []weft.Allocation{weft.RandomAllocation, weft.RandomAllocation, weft.SequentialAllocation, weft.PreservingAllocation}
	draw := func(side int) (nats []NATConfig, name string) {
		for i := range 1 + rng.IntN(3) {
			x := names[rng.IntN(len(names))]
			c := configs[x]
			c.Allocation = allocations[rng.IntN(len(allocations))]
			if rng.IntN(8) == 0 {
				c = NATConfig{Mapping: weft.NoNAT, Filtering: c.Filtering}
				x = "firewall-" + c.Filtering.Abbreviation()
			} else if rng.IntN(3) == 0 {
				c.Pooling = Pooling(rng.IntN(2))
				for j := range 2 + rng.IntN(2) {
					c.Public = append(c.Public, netip.AddrFrom4([4]byte{198, 18, byte(side*10 + i), byte(1 + j)}))
				}
			}
			nats = append(nats, c)
			name += fmt.Sprintf(" %s/%v/%d/%v", x, c.Allocation, len(c.Public), c.Pooling)
		}
		return nats, name
	}
	count := map[[2]Way]int{}
	for range 150 {
		a, x := draw(1)
		b, y := draw(2)
		want, why := Possible(Side{NATs: a}, Side{NATs: b})
		got := play(t, a, b, rng)
		count[[2]Way{want, got}]++
		lucky := arbitrary(a) || arbitrary(b) // one draw of a few may be the right one
		if got != want && !(lucky && got > want) {
			t.Errorf("%s with %s: %v; the oracle says %v, as %s", x, y, got, want, why)
		}
	}
	t.Logf("oracle and outcome: %v", count)
}

func arbitrary(nats []NATConfig) bool {
	for _, c := range nats {
		if len(c.Public) > 1 && c.Pooling == ArbitraryPooling {
			return true
		}
	}
	return false
}
