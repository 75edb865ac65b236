package control

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"weft"
	"weft/wire"
)

func nets(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestANetworkIsInTheMapWhileItsRouterOffersItAndTheAdministratorAllowsIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		ctx := context.Background()
		expect := func(when string, want ...string) {
			t.Helper()
			settle()
			if got := b.peer(t, a).Routes; !slices.Equal(got, nets(want...)) {
				t.Errorf("%s: b's map has %v behind a, want %v", when, got, want)
			}
			if err := b.checkMap(); err != nil {
				t.Error(err)
			}
		}
		offer := func(list ...string) { a.update(wire.Update{Routes: nets(list...)}) }
		offer("192.168.142.0/24", "192.168.142.0/24", "100.64.0.0/16", "100.64.3.0/24", "127.0.0.0/8", "fd00::/8", "0.0.0.0/0", "2001:db8:142::/64")
		expect("nobody has approved anything")
		list := w.Routes()
		if len(list) == 0 || list[0].Approved || !list[0].Advertised || list[0].Node != "a" {
			t.Errorf("routes are listed as %+v", list)
		}
		if _, err := w.ChangeRoutes(ctx, "a", RoutesRequest{Approve: nets("192.168.142.0/24", "2001:db8:142::/64", "10.0.0.0/8")}); err != nil {
			t.Fatal(err)
		}
		expect("what is offered and approved", "192.168.142.0/24", "2001:db8:142::/64")
		if _, err := w.ChangeRoutes(ctx, "a", RoutesRequest{Approve: nets("0.0.0.0/0"), Withdraw: nets("2001:db8:142::/64")}); err != nil {
			t.Fatal(err)
		}
		expect("an exit node", "0.0.0.0/0", "192.168.142.0/24")
		offer("10.0.0.0/8")
		expect("approved ahead, and offered now", "10.0.0.0/8")
		offer()
		expect("nothing is offered")
		w.restart()
		a.connect()
		b.connect()
		offer("192.168.142.0/24")
		expect("approval outlives a restart and a pause", "192.168.142.0/24")
	})
}

func TestARouteThatTakesTheOverlaysAddressesIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.join(KeyRequest{}, "a")
		ctx := context.Background()
		for _, p := range []string{"100.64.0.0/10", "100.64.5.0/24", "100.0.0.0/8", "127.0.0.0/8", "fe80::/64"} {
			_, err := w.ChangeRoutes(ctx, "a", RoutesRequest{Approve: nets("192.168.1.0/24", p)})
			if e := new(weft.Error); !errors.As(err, &e) || e.Code != weft.CodeBadRequest {
				t.Errorf("%s: %v, want a refusal", p, err)
			}
		}
		if _, err := w.ChangeRoutes(ctx, "a", RoutesRequest{Withdraw: nets("192.168.1.0/24")}); err == nil {
			t.Error("what was refused along with others was approved all the same")
		}
	})
}

func TestThePolicyApprovesNetworksOfWhomItNames(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{Tags: []string{"router"}}, "a"), w.join(KeyRequest{}, "b")
		a.update(wire.Update{Routes: nets("192.168.142.0/24", "10.9.0.0/16")})
		settle()
		if got := b.peer(t, a).Routes; len(got) != 0 {
			t.Errorf("before there is a policy a speaks for %v", got)
		}
		w.set(`{"tagOwners": {"tag:router": []}, "autoApprovers": {"routes": {"192.168.0.0/16": ["tag:router"]}}}`, "")
		settle()
		if got := b.peer(t, a).Routes; !slices.Equal(got, nets("192.168.142.0/24")) {
			t.Errorf("with a policy that approves 192.168.0.0/16, a speaks for %v", got)
		}
		a.update(wire.Update{Routes: nets("192.168.142.0/24", "192.168.7.0/24", "10.9.0.0/16")})
		b.update(wire.Update{Routes: nets("192.168.8.0/24")})
		settle()
		if got := b.peer(t, a).Routes; !slices.Equal(got, nets("192.168.7.0/24", "192.168.142.0/24")) {
			t.Errorf("when it offers more, a speaks for %v", got)
		}
		if got := a.peer(t, b).Routes; len(got) != 0 {
			t.Errorf("b, whom the policy does not name, speaks for %v", got)
		}
	})
}
