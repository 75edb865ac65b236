package netns

import (
	"fmt"
	"net/netip"
	"strings"
)

// NAT is what a router does to the packets that pass it. The kinds are made by the kernel's
// conntrack and nftables, and named by what a node behind them observes (RFC 4787, RFC 3489).
type NAT string

const (
	// PortRestrictedCone keeps the source port wherever it is free, so that one inside socket has
	// one outside port towards everybody (endpoint-independent mapping in practice), and lets in
	// only who was written to, address and port (address- and port-dependent filtering).
	PortRestrictedCone NAT = "port-restricted-cone"
	// Symmetric gives every destination a new random outside port and lets in only that
	// destination: address- and port-dependent mapping and filtering.
	Symmetric NAT = "symmetric"
	// FullCone is a PortRestrictedCone with all UDP that nobody asked for forwarded to the first host behind it, as
	// home routers' "exposed host" does: endpoint-independent mapping and filtering, for that one host.
	FullCone NAT = "full-cone"
	// Firewall translates nothing; it lets in only answers to what went out.
	Firewall NAT = "firewall"
	// None is a plain router with public addresses behind it.
	None NAT = "none"
)

func (n NAT) valid() bool {
	return n == PortRestrictedCone || n == FullCone || n == Symmetric || n == Firewall || n == None
}

func (n NAT) translates() bool {
	return n == PortRestrictedCone || n == FullCone || n == Symmetric || n == translated
}

// ruleset writes the nftables rules of a router. Chains "cut" and "damage" are empty; they are
// filled while the lab runs. first is the host that a FullCone exposes. stateful tables are made only where the kind needs them, so that a
// plain router tracks nothing.
//
// Unsolicited packets to the router's own address die in INPUT. This is not only what home routers
// do: conntrack sees a stranger's probe in PREROUTING, and if INPUT accepted it the entry would be
// confirmed and occupy the very tuple that our own first packet to that stranger needs. The kernel
// would then pick another outside port, and the cone would have become symmetric.
func ruleset(nat NAT, first netip.Addr) string {
	var b strings.Builder
	stateful := ""
	if nat != None {
		stateful = `
			ct state established,related accept
			ct status dnat accept
			iifname "wan" drop`
		fmt.Fprint(&b, `
	table inet lab {
		chain input {
			type filter hook input priority filter; policy accept;
			ct state established,related accept
			iifname "wan" meta l4proto { tcp, udp } drop
		}
	}
`)
	}
	fmt.Fprintf(&b, `
	table inet lab {
		chain cut { }
		chain damage { }
		chain forward {
			type filter hook forward priority filter; policy accept;
			jump cut
			jump damage%s
		}
	}
`, stateful)
	if nat.translates() {
		how := "masquerade"
		if nat == Symmetric {
			how = "masquerade fully-random"
		}
		fmt.Fprintf(&b, `
	table ip labnat {
		chain postrouting {
			type nat hook postrouting priority srcnat; policy accept;
			oifname "wan" %s
		}
	}
`, how)
	}
	if nat == FullCone {
		fmt.Fprintf(&b, `
	table ip labnat {
		chain prerouting {
			type nat hook prerouting priority dstnat; policy accept;
			iifname "wan" meta l4proto udp dnat to %v
		}
	}
`, first)
	}
	return b.String()
}

// Rules of the chain "cut". One rule with two inequalities would be shorter, but nft 1.0.6 merges
// neighbouring fields into one comparison, which for inequalities is another condition.
const (
	cutAll       = "meta l4proto udp drop"
	cutAllButDNS = "udp dport 53 return\nudp sport 53 return\nmeta l4proto udp drop"
)

func cutBetween(a, b netip.Addr) string {
	family := "ip"
	if a.Is6() {
		family = "ip6"
	}
	return fmt.Sprintf("meta l4proto udp %[1]s saddr %[2]v %[1]s daddr %[3]v drop\nmeta l4proto udp %[1]s saddr %[3]v %[1]s daddr %[2]v drop", family, a, b)
}

// cut writes what replaces the chain "cut".
func cut(rules string) string { return refill("cut", rules) }

// damage writes what replaces the chain "damage": loss of this many percent, in steps of 1/10,000.
func damage(percent float64) string {
	if percent == 0 {
		return refill("damage", "")
	}
	return refill("damage", fmt.Sprintf("numgen random mod 10000 < %d drop", int(percent*100+0.5)))
}

// refill replaces the rules of one chain in one transaction: no packet sees half of it.
func refill(chain, rules string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "flush chain inet lab %s\n", chain)
	for rule := range strings.Lines(rules) {
		fmt.Fprintf(&b, "add rule inet lab %s %s\n", chain, strings.TrimSpace(rule))
	}
	return b.String()
}

// loadRules feeds rules to nft inside a namespace.
func loadRules(namespace, rules string) error {
	return tool(rules, "ip", "netns", "exec", namespace, "nft", "-f", "-")
}
