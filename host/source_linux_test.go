package host

import (
	"net/netip"
	"testing"
)

func TestTheAddressThatSomethingIsReachedFromIsTold(t *testing.T) {
	for to, want := range map[string]string{"127.9.9.9:9": "127.0.0.1", "[::1]:9": "::1"} {
		got, err := SourceAddr("", netip.MustParseAddrPort(to))
		if want := netip.MustParseAddr(want); err != nil && want.Is6() {
			t.Logf("no IPv6 here: %v", err)
		} else if err != nil || got != want {
			t.Errorf("to %s from %v, not %v (%v)", to, got, want, err)
		}
	}
	if got, err := SourceAddr("lo", netip.MustParseAddrPort("127.0.0.1:9")); err != nil || got != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("by lo from %v (%v)", got, err)
	}
	if got, err := SourceAddr("no-such-link", netip.MustParseAddrPort("127.0.0.1:9")); err == nil {
		t.Errorf("by no link from %v", got)
	}
}
