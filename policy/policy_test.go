package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"weft"
	"weft/policy"
)

// machine is a node with the addresses 100.64.0.N and fd00::N.
func machine(n byte, user string, tags ...string) weft.Node {
	return weft.Node{
		ID: weft.NodeID(n), User: user, Tags: tags,
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{100, 64, 0, n}), netip.AddrFrom16([16]byte{0: 0xfd, 15: n})},
	}
}

func TestWithoutADocumentAUsersOwnMachinesReachEachOtherAndNothingElseDoes(t *testing.T) {
	router := machine(4, "ann")
	router.Routes = []netip.Prefix{netip.MustParsePrefix("192.168.7.0/24")}
	laptop, phone, stranger, robot := machine(1, "ann"), machine(2, "ann"), machine(3, "bob"), machine(5, "ann", "tag:robot")
	one, two := machine(6, ""), machine(7, "")
	for _, c := range []struct {
		what     string
		from, at weft.Node
		to       string // "": the node
		allowed  bool
	}{
		{"a user's machines", laptop, phone, "", true},
		{"another user's machine", stranger, phone, "", false},
		{"a tagged machine", laptop, robot, "", false},
		{"from a tagged machine", robot, laptop, "", false},
		{"a tagged machine from a tagged machine", robot, robot, "", false},
		{"machines of nobody", one, two, "", true},
		{"a machine of nobody from a user's", laptop, one, "", false},
		{"a user's machine from one of nobody", one, laptop, "", false},
		{"behind the user's router", laptop, router, "192.168.7.9", true},
		{"the router itself", laptop, router, "", true},
		{"behind another user's router", stranger, router, "192.168.7.9", false},
		{"what no router has", laptop, router, "192.168.8.9", false},
	} {
		to := c.at.Addrs[1]
		if c.to != "" {
			to = netip.MustParseAddr(c.to)
		}
		rules := policy.Default().Rules(c.at)
		if rules == nil {
			t.Errorf("%s: rules that are nil", c.what)
		}
		flow := policy.Flow{Sender: c.from, From: c.from.Addrs[1], To: to, Proto: weft.ProtoTCP, Port: 22}
		if rule, ok := policy.Allows(rules, c.at, flow); ok != c.allowed || ok && rule.Why != policy.DefaultWhy {
			t.Errorf("%s: %v by %+v", c.what, ok, rule)
		}
	}
}

func TestNodesOfAClassHaveTheSameRules(t *testing.T) {
	p := policy.Default()
	router := machine(4, "ann")
	router.Routes = []netip.Prefix{netip.MustParsePrefix("192.168.7.0/24")}
	if a, b := p.Class(machine(1, "ann")), p.Class(machine(2, "ann")); a == "" || a != b {
		t.Errorf("two machines of a user are of the classes %q and %q", a, b)
	}
	if a, b := p.Class(machine(1, "ann")), p.Class(machine(1, "bob")); a == b {
		t.Errorf("machines of two users are of one class, %q", a)
	}
	if a, b := p.Class(machine(1, "ann")), p.Class(machine(1, "ann", "tag:x")); a == b {
		t.Errorf("a tagged machine is of the class of one that is not, %q", a)
	}
	if c := p.Class(router); c != "" {
		t.Errorf("a router is of the class %q", c)
	}

	a, b := machine(1, "ann"), machine(2, "ann")
	p = compiled(t, fmt.Sprintf(`{"acls": [{"action": "accept", "src": ["*"], "dst": ["%v:22", "100.64.0.0/10:80"]}]}`, a.Addrs[0]))
	if p.Class(a) == p.Class(b) {
		t.Error("a machine that the policy names by its address is of the class of one that it does not name")
	}
	p = compiled(t, `{"acls": [{"action": "accept", "src": ["*"], "dst": ["100.64.0.0/10:80"]}]}`)
	if p.Class(a) == "" || p.Class(a) != p.Class(b) {
		t.Errorf("machines of one network are of the classes %q and %q", p.Class(a), p.Class(b))
	}
	twice := b
	twice.Addrs = append(slices.Clone(b.Addrs), netip.MustParseAddr("100.64.9.9"))
	if c := p.Class(twice); c != "" {
		t.Errorf("a machine with two addresses of one family is of the class %q", c)
	}
}
