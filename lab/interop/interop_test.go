package interop

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weft/lab/guest"
)

// ways are all in which two ends can meet.
func ways(f func(weBegin, six, psk bool)) {
	for i := range 8 {
		f(i&4 == 0, i&2 != 0, i&1 != 0)
	}
}

func wayName(weBegin, six, psk bool) string {
	return fmt.Sprintf("we begin %v, IPv6 %v, PSK %v", weBegin, six, psk)
}

// meetAll opens tunnels of all ways to a kind, and talks in each from both sides.
func meetAll(t *testing.T, w *world, name string) {
	ways(func(weBegin, six, psk bool) {
		t.Run(wayName(weBegin, six, psk), func(t *testing.T) {
			x := w.meet(t, name, weBegin, six, psk)
			// Who knows the other's address begins, and the other answers on what it learns so.
			sides := []struct {
				from kind
				to   tunnel
			}{{w.ours, x.theirs}, {x.peer, x.ours}}
			if !weBegin {
				sides[0], sides[1] = sides[1], sides[0]
			}
			for _, s := range sides {
				const bytes, datagrams = 200_000, 40
				list, err := hold(t.Context(), s.from, talk{To: s.to.addrs(), Bytes: bytes, Rate: 2_000_000, Datagrams: datagrams, Pause: 2 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				for _, h := range list {
					if h.Wrong != "" || h.Bytes != bytes || h.Datagrams < datagrams/2 || h.Twice > 0 {
						t.Errorf("what %s answers: %+v", h.To, h)
					}
				}
			}
			for _, s := range []struct {
				of, at   kind
				n, other tunnel
			}{{w.ours, x.peer, x.ours, x.theirs}, {x.peer, w.ours, x.theirs, x.ours}} {
				state, err := s.of.state(s.n)
				endpoint := netip.AddrPortFrom(s.at.addr(six), s.other.Port)
				if err != nil || time.Since(state.Handshake) > time.Minute || state.Endpoint != endpoint {
					t.Errorf("after all that, %s knows %+v, %v, and not %v", s.n.Name, state, err, endpoint)
				}
			}
		})
	})
}

func TestWireguardGoIsSpokenWith(t *testing.T) {
	meetAll(t, newWorld(t, noImpairment, "library"), "library")
}

func TestDebiansWireguardGoIsSpokenWith(t *testing.T) {
	meetAll(t, newWorld(t, noImpairment, "debian"), "debian")
}

func TestTheKernelsWireGuardIsSpokenWith(t *testing.T) {
	if err := guest.Available(); err != nil {
		t.Skip(err)
	}
	meetAll(t, newWorld(t, noImpairment, "kernel"), "kernel")
}
