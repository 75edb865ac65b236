package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
)

// access is what a node's weft explain A B WHAT says.
func (w *world) access(n *Node, from, to, what string) (doc weft.Access, err error) {
	out, err := n.Host.Run(w.ctx, w.fleet.Binary, "--socket", n.Socket, "--json", "explain", from, to, what)
	if out == "" {
		return doc, err
	}
	return doc, json.Unmarshal([]byte(out), &doc)
}

// TestWhatNoRuleAllowsStaysOutsideWhoeverBegan has a machine among its owner's own, then tagged, which nobody may reach until a policy says
// so and which may reach nobody's own, and then its owner's again.
func TestWhatNoRuleAllowsStaysOutsideWhoeverBegan(t *testing.T) {
	w := newWorld(t)
	_, hostA := w.home("ann", netns.PortRestrictedCone)
	_, hostB := w.home("bob", netns.PortRestrictedCone)
	a, b := w.node(hostA), w.node(hostB)
	selfA, selfB := w.up(a).Self, w.up(b).Self
	w.serves(hostB, selfB.Addrs[0])
	w.reaches(a, "bob", weft.Direct)
	page := "http://" + selfB.Addrs[0].String() + "/"

	// Packets in pieces, of both families; what ICMP says of a port that nobody listens on.
	for _, to := range selfB.Addrs {
		w.run(a.Host, "ping", "-c", "3", "-i", "0.2", "-W", "5", "-s", "4000", to.String())
	}
	closed := fmt.Sprintf("exec 3<>/dev/udp/%s/9; echo one >&3; sleep 0.5; echo two >&3", selfB.Addrs[0])
	if out, err := a.Host.Run(w.ctx, "bash", "-c", closed); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody heard that a port is closed: %v %s", err, out)
	}
	if got := w.run(a.Host, "curl", "-sS", "--max-time", "10", page); got != "this is bob" {
		t.Errorf("bob's page reads %q", got)
	}
	if doc, err := w.access(b, "ann", "bob", "tcp:80"); err != nil || !doc.Allowed || len(doc.Rules) == 0 {
		t.Errorf("what is allowed is explained as %+v: %v", doc, err)
	}

	if _, err := w.server.Admin(w.ctx, "node", "tag", "bob", "web"); err != nil {
		t.Fatal(err)
	}
	out := func(from *netns.Host, to netip.Addr) {
		t.Helper()
		if err := netns.WaitFor(w.ctx, fmt.Sprintf("%s not to reach %s", from.Name, to), func() error {
			if _, err := from.Run(w.ctx, "ping", "-c", "1", "-W", "1", to.String()); err == nil {
				return fmt.Errorf("it does")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range selfB.Addrs {
		out(a.Host, to)
	}
	out(b.Host, selfA.Addrs[0])
	if got, err := a.Host.Run(w.ctx, "curl", "-sS", "--max-time", "2", page); err == nil {
		t.Errorf("ann reads %q", got)
	}
	doc, err := w.access(b, "ann", "bob", "tcp:80")
	if err != nil && doc.Reason == "" {
		t.Fatal(err)
	}
	if doc.Allowed || doc.Refused.Packets == 0 || doc.Refused.Last != "tcp:80" || time.Since(doc.Refused.At) > time.Minute {
		t.Errorf("what is refused is explained as %+v", doc)
	}
	if s := w.up(b); len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "ann") || s.Self.Refused["no_rule"] == 0 {
		t.Errorf("the status says %v, and counts %v", s.Notes, s.Self.Refused)
	}

	if _, err := w.server.Admin(w.ctx, "node", "tag", "bob"); err != nil {
		t.Fatal(err)
	}
	w.eventually("ann to reach bob again", a.Host, "ping", "-c", "1", "-W", "2", selfB.Addrs[0].String())
	w.eventually("bob to reach ann again", b.Host, "ping", "-c", "1", "-W", "2", selfA.Addrs[1].String())
}
