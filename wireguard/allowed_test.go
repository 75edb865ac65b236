package wireguard

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestRoutesAgreeWithALookAtAllOfThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Routes
		type entry struct {
			p    netip.Prefix
			peer *Peer
		}
		var list []entry
		peers := []*Peer{{}, {}, {}, {}}
		draw := func() netip.Addr {
			// Few bits differ, so that prefixes meet.
			b := byte(rapid.IntRange(0, 255).Draw(t, "byte"))
			c := byte(rapid.IntRange(0, 3).Draw(t, "high"))
			if rapid.Bool().Draw(t, "v4") {
				return netip.AddrFrom4([4]byte{10, c, 0, b})
			}
			return netip.AddrFrom16([16]byte{0xfd, c, 7: b, 8: c, 15: b})
		}
		for range rapid.IntRange(0, 40).Draw(t, "routes") {
			a := draw()
			p := netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits"))
			e := entry{p.Masked(), rapid.SampledFrom(peers).Draw(t, "peer")}
			r.Insert(p, e.peer)
			list = append(list, e)
		}
		for range 40 {
			a := draw()
			var want *Peer
			best := -1
			for _, e := range list {
				if e.p.Contains(a) && e.p.Bits() >= best {
					want, best = e.peer, e.p.Bits()
				}
			}
			if got := r.Lookup(a); got != want {
				t.Fatalf("%v belongs to %p, want %p, by %v", a, got, want, list)
			}
			if a.Is4() {
				var six *Peer // who has its form in IPv6, if there is such a prefix
				mapped, best := netip.AddrFrom16(a.As16()), -1
				for _, e := range list {
					if p := e.p; p.Addr().Is6() && p.Bits() >= best && netip.PrefixFrom(p.Addr(), p.Bits()).Masked() == netip.PrefixFrom(mapped, p.Bits()).Masked() {
						six, best = e.peer, p.Bits()
					}
				}
				if got := r.Lookup(mapped); got != six {
					t.Fatalf("%v in IPv6's form belongs to %p, want %p", a, got, six)
				}
			}
		}
	})
}

func BenchmarkLookupAmong1000(b *testing.B) {
	var r Routes
	for i := range 1000 {
		r.Insert(netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), 32), &Peer{})
	}
	a := netip.AddrFrom4([4]byte{100, 64, 3, 17})
	b.ReportAllocs()
	for b.Loop() {
		if r.Lookup(a) == nil {
			b.Fatal("not found")
		}
	}
}
