package control

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weft"
	"weft/control/store"
)

func TestANameIsTheWishOrTheWishWithTheLowestFreeNumber(t *testing.T) {
	n := newIndex().names
	give := func(wish, want string) {
		t.Helper()
		if got := n.free(wish); got != want {
			t.Errorf("wish %q: %q, want %q", wish, got, want)
		}
		n.claim(want, 1)
	}
	give("Web.example.org", "web")
	give("web", "web-2")
	give("WEB", "web-3")
	n.release("web-2")
	give("web", "web-2")
	give("web", "web-4")
	n.release("web")
	give("web", "web")
	give("web-2", "web-2-2")
	give("web-7", "web-7")
	give("web", "web-5")
	give("web", "web-6")
	give("web", "web-8")
	give("", "node")
	give("-- --", "node-2")
	give("localhost", "node-3")
	give("wpad", "node-4")
	give("10", "node-10")
	give("0x7f", "node-0x7f")
	long := strings.Repeat("a", 63)
	give(long, long)
	give(long, strings.Repeat("a", 52)+"-2")
	give(long[:62]+"b", long[:62]+"b")
	give(long, strings.Repeat("a", 52)+"-3")
}

func TestAnyNumberOfMachinesMayWishForOneName(t *testing.T) {
	n := newIndex().names
	for i := range 100_000 {
		name := n.free("debian")
		if want := fmt.Sprintf("debian-%d", i+1); i > 0 && name != want || i == 0 && name != "debian" {
			t.Fatalf("machine %d is %q", i, name)
		}
		n.claim(name, weft.NodeID(i+1))
	}
}

func TestNamesAreUniqueLabelsWhateverMachinesWish(t *testing.T) {
	wish := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"a", "a-2", "a-3", "a-02", "2", "a-99999999999999999999"}))
	rapid.Check(t, func(rt *rapid.T) {
		n := newIndex().names
		var given []string
		for range rapid.IntRange(1, 60).Draw(rt, "machines") {
			if len(given) > 0 && rapid.IntRange(0, 3).Draw(rt, "leaves") == 0 {
				i := rapid.IntRange(0, len(given)-1).Draw(rt, "who")
				n.release(given[i])
				given = append(given[:i], given[i+1:]...)
				continue
			}
			name := n.free(wish.Draw(rt, "wish"))
			if _, taken := n.taken[name]; taken || name == "" || weft.CleanName(name) != name || reserved[name] {
				rt.Fatalf("%q was given", name)
			}
			n.claim(name, 1)
			given = append(given, name)
		}
		for _, name := range given {
			n.release(name)
		}
		if len(n.taken) != 0 || len(n.suffixes) != 0 {
			rt.Fatalf("left are %v, %v", n.taken, n.suffixes)
		}
	})
}

func TestAddressesAreGivenOnceInRangesThatChange(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/29"), netip.MustParsePrefix("10.0.0.0/28"), netip.MustParsePrefix("10.0.0.8/29"), netip.MustParsePrefix("10.0.0.0/30")}
	rapid.Check(t, func(rt *rapid.T) {
		n := store.Network{IPv4: ranges[0], IPv6: randomULA(), NextNode: 1}
		given := make(map[netip.Addr]bool)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			if rapid.IntRange(0, 3).Draw(rt, "what") == 0 {
				n.IPv4 = rapid.SampledFrom(ranges).Draw(rt, "range")
				continue
			}
			v4, v6, err := giveAddrs(&n, n.NextNode)
			if err != nil {
				if weft.CodeOf(err) != weft.CodeExhausted {
					rt.Fatal(err)
				}
				for a := serviceAddr(n.IPv4).Next(); a.Less(lastAddr(n.IPv4)); a = a.Next() {
					if !given[a] {
						rt.Fatalf("%v is free in %v, and was not given", a, n.IPv4)
					}
				}
				continue
			}
			n.NextNode++
			if given[v4] || given[v6] || !n.IPv4.Contains(v4) || !n.IPv6.Contains(v6) ||
				v4 == n.IPv4.Addr() || v4 == serviceAddr(n.IPv4) || v4 == lastAddr(n.IPv4) {
				rt.Fatalf("%v, %v were given", v4, v6)
			}
			given[v4], given[v6] = true, true
		}
		for i, s := range n.Given {
			if s.Last.Less(s.First) || i > 0 && !n.Given[i-1].Last.Next().Less(s.First) {
				rt.Fatalf("spans %v are not apart and in order", n.Given)
			}
		}
	})
}
