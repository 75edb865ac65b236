package netns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// PortMapping says how a router lets the programs behind it map ports.
type PortMapping struct {
	// External is an IPv4 address that the router gets beside its own and says to have outside. It must be one
	// that miniupnpd takes for public, which those of documentation are not.
	External netip.Addr
	UPnP     bool // UPnP Internet Gateway Device
	NATPMP   bool // NAT-PMP and PCP
	// ForceV1 has the router describe itself as an Internet Gateway Device of version 1.
	ForceV1 bool
}

// MapPorts runs miniupnpd on the router, which must translate. What it maps passes the router's filter.
func (r *Router) MapPorts(ctx context.Context, m PortMapping) (*Process, error) {
	p, err := r.mapPorts(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("mapping ports on %s: %w", r.Name, err)
	}
	return p, nil
}

func (r *Router) mapPorts(ctx context.Context, m PortMapping) (*Process, error) {
	if !r.nat.translates() || r.user != nil {
		return nil, errors.New("only a router that translates by the kernel maps ports")
	}
	yes := func(b bool) string {
		if b {
			return "yes"
		}
		return "no"
	}
	conf := filepath.Join(r.lab.Dir(), r.Name+"-miniupnpd.conf")
	text := fmt.Sprintf(`ext_ifname=%s
ext_ip=%s
listening_ip=%s
http_port=0
ipv6_disable=yes
enable_natpmp=%s
enable_upnp=%s
force_igd_desc_v1=%s
min_lifetime=1
max_lifetime=86400
secure_mode=yes
system_uptime=no
upnp_table_name=miniupnpd
upnp_nat_table_name=miniupnpd
uuid=6f1c2f5e-5d3a-4a52-9b0e-0123456789ab
allow 1024-65535 %s 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
`, wanLink, m.External, lanLink, yes(m.NATPMP), yes(m.UPnP), yes(m.ForceV1), r.inside.prefix4)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	outside := netip.PrefixFrom(m.External, 32)
	// A second start finds all this in place.
	if err := batch(r.namespace, "addr replace "+outside.String()+" dev "+wanLink); err != nil {
		return nil, err
	}
	if err := batch(r.on.gateway, "route replace "+outside.String()+" via "+r.addr4.String()); err != nil {
		return nil, err
	}
	// The chains that miniupnpd fills, empty at each start as after a router's restart.
	const rules = `
table inet miniupnpd
delete table inet miniupnpd
table inet miniupnpd {
	chain forward {
		type filter hook forward priority filter; policy accept;
		jump miniupnpd
	}
	chain miniupnpd { }
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		jump prerouting_miniupnpd
	}
	chain postrouting {
		type nat hook postrouting priority srcnat - 1; policy accept;
		jump postrouting_miniupnpd
	}
	chain prerouting_miniupnpd { }
	chain postrouting_miniupnpd { }
}
table inet lab {
	chain mapped { }
}
flush chain inet lab mapped
add rule inet lab mapped ct status dnat accept
`
	again := tool("", "ip", "netns", "exec", r.namespace, "nft", "list", "chain", "inet", "lab", "mapped") == nil
	if err := loadRules(r.namespace, rules); err != nil {
		return nil, err
	}
	if !again {
		if err := loadRules(r.namespace, "insert rule inet lab forward jump mapped\n"); err != nil {
			return nil, err
		}
	}
	return r.Start(r.Command(ctx, "miniupnpd", "-d", "-f", conf, "-P", filepath.Join(r.lab.Dir(), r.Name+"-miniupnpd.pid")))
}
