package control

import (
	"context"
	"net/netip"
	"testing"

	"weft"
)

func TestEachNodeIsToldWhatItHasToLetInAndNoOtherIs(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		if _, err := w.CreateUser(context.Background(), "ann"); err != nil {
			t.Fatal(err)
		}
		a := w.join(KeyRequest{}, "a")
		laptop := w.join(KeyRequest{User: "ann"}, "laptop")
		robot := w.join(KeyRequest{User: "ann", Tags: []string{"robot"}}, "robot")
		for m, from := range map[*machine]weft.Source{a: weft.SourceUser(""), laptop: weft.SourceUser("ann")} {
			rules := m.current().Rules
			if len(rules) != 1 || len(rules[0].From) != 1 || rules[0].From[0] != from || rules[0].To != nil || rules[0].Ports != nil {
				t.Errorf("node %d lets in %+v", m.id(), rules)
			}
		}
		if rules := robot.current().Rules; len(rules) != 0 {
			t.Errorf("a tagged node lets in %+v without a policy", rules)
		}

		// What changes the rules of one is no news to the others.
		heard, told := a.heard(), laptop.heard()
		err := w.do(context.Background(), func(t *tx) error {
			found, _ := t.nodes.get(uint32(laptop.id()))
			e := *found
			e.rules = nil
			t.rule(&e)
			t.nodes = t.nodes.set(uint32(e.ID), &e)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		settle()
		if laptop.heard() != told+1 || a.heard() != heard {
			t.Errorf("%d changes for the one whose rules changed, %d for another", laptop.heard()-told, a.heard()-heard)
		}
		// Whoever was not told of a version is not behind for that.
		a.hangUp()
		settle()
		a.connect()
		settle()
		if err := a.checkMap(); err != nil || a.maps != 1 {
			t.Errorf("%d whole maps, %v", a.maps, err)
		}
	})
}

func TestAGatewayEnforcesForThePlainMembersBehindIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		gateway := w.join(KeyRequest{}, "gateway")
		ask := PlainRequest{Key: w.machine(nil, "").hello.NodeKey, Via: "gateway", Endpoint: "gw.example:1"}
		plain, err := w.CreatePlain(context.Background(), ask)
		if err != nil {
			t.Fatal(err)
		}
		settle()
		addr := plain.Node.Addrs[0]
		want := netip.PrefixFrom(addr, 32)
		rules := gateway.current().Rules
		if len(rules) != 2 || len(rules[1].To) != 2 || rules[1].To[0] != want || rules[1].From[0] != weft.SourceUser("") {
			t.Errorf("the gateway lets in %+v", rules)
		}
		if err := w.RemoveNode(context.Background(), plain.Node.Name); err != nil {
			t.Fatal(err)
		}
		settle()
		if rules := gateway.current().Rules; len(rules) != 1 {
			t.Errorf("with the member gone the gateway lets in %+v", rules)
		}
		if err := gateway.checkMap(); err != nil {
			t.Error(err)
		}
	})
}
