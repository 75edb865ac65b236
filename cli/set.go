package cli

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft"
	"weft/engine"
	"weft/node"
)

// A setting is one KEY of weft set.
type setting struct {
	help string
	get  func(node.Settings) string
	set  func(*node.Settings, string) error
}

var settings = map[string]setting{
	"bond": bondSetting, "congestion": congestionSetting, "redundant": redundantSetting, "tcp": tcpSetting,
	"port": {
		help: "UDP port, 1 to 65535; auto takes one that is free, and keeps it",
		get: func(s node.Settings) string {
			if s.Port == 0 {
				return "auto"
			}
			return strconv.Itoa(int(s.Port))
		},
		set: func(s *node.Settings, v string) error {
			if v == "auto" {
				s.Port = 0
				return nil
			}
			n, err := strconv.ParseUint(v, 10, 16)
			if err != nil || n == 0 {
				return fmt.Errorf("%q is no port: give 1 to 65535, or auto", v)
			}
			s.Port = uint16(n)
			return nil
		},
	},
	"endpoints": {
		help: "addresses, IP:PORT with commas between, where this node is reachable because you arranged it; empty for none",
		get: func(s node.Settings) string {
			list := make([]string, len(s.Endpoints))
			for i, e := range s.Endpoints {
				list[i] = e.String()
			}
			return strings.Join(list, ",")
		},
		set: func(s *node.Settings, v string) error {
			s.Endpoints = nil
			for _, x := range strings.Split(v, ",") {
				if x == "" {
					continue
				}
				a, err := netip.ParseAddrPort(x)
				if err != nil || a.Port() == 0 || a.Addr().IsUnspecified() {
					return fmt.Errorf("%q is no endpoint: give IP:PORT, for example 203.0.113.7:41641", x)
				}
				s.Endpoints = append(s.Endpoints, a)
			}
			return nil
		},
	},
	"dns": {
		help: "on: names of the overlay resolve on this machine; off: its resolver is left alone",
		get: func(s node.Settings) string {
			if s.NoDNS {
				return "off"
			}
			return "on"
		},
		set: func(s *node.Settings, v string) error {
			if v != "on" && v != "off" {
				return fmt.Errorf("dns is on or off, not %q", v)
			}
			s.NoDNS = v == "off"
			return nil
		},
	},
	"portmap": {
		help: "on: the router is asked to pass this node's UDP port on, by PCP, NAT-PMP or UPnP; off: it is left alone",
		get: func(s node.Settings) string {
			if s.NoPortMap {
				return "off"
			}
			return "on"
		},
		set: func(s *node.Settings, v string) error {
			if v != "on" && v != "off" {
				return fmt.Errorf("portmap is on or off, not %q", v)
			}
			s.NoPortMap = v == "off"
			return nil
		},
	},
	"mtu": {
		help: fmt.Sprintf("longest packet of the network's interface in bytes, %d to %d: 8904 where there are jumbo frames; auto fits an Ethernet", node.MinMTU, node.MaxMTU),
		get: func(s node.Settings) string {
			if s.MTU == 0 {
				return "auto"
			}
			return strconv.Itoa(s.MTU)
		},
		set: func(s *node.Settings, v string) (err error) {
			if v == "auto" {
				s.MTU = 0
				return nil
			}
			s.MTU, err = parseMTU(v)
			return err
		},
	},
}

// parseMTU reads an MTU that somebody wants.
func parseMTU(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < node.MinMTU || n > node.MaxMTU {
		return 0, fmt.Errorf("%q is no MTU: give %d to %d bytes, or auto", v, node.MinMTU, node.MaxMTU)
	}
	return n, nil
}

func (a *app) setCommand() *cobra.Command {
	var help strings.Builder
	for _, k := range settingNames() {
		fmt.Fprintf(&help, "  %-19s %s\n", k, settings[k].help)
	}
	return &cobra.Command{
		Use:   "set [KEY=VALUE]...",
		Short: "Change settings, or show them",
		Long: "Change the settings that are named and leave the others as they are; all of them or none. Without arguments: show them.\n\n" +
			help.String() + "\n  bond.NAME  the same as bond, with one peer; empty for what bond says. Changes of bonding interrupt nothing.",
		RunE: func(c *cobra.Command, list []string) error {
			if err := changeSettings(new(node.Settings), list); err != nil { // what makes no sense needs no daemon to say so
				return err
			}
			s, err := a.client().Settings(c.Context())
			if err != nil {
				return err
			}
			if err := changeSettings(&s, list); err != nil {
				return err
			}
			if len(list) > 0 {
				if err := a.client().SetSettings(c.Context(), s); err != nil {
					return err
				}
				if s, err = a.client().Settings(c.Context()); err != nil {
					return err
				}
			}
			if a.json {
				explicit(&s)
				return a.printJSON(struct {
					Schema int `json:"schema_version"`
					node.Settings
				}{weft.SchemaVersion, s})
			}
			for _, k := range settingNames() {
				fmt.Fprintf(a.out, "%s=%s\n", k, settings[k].get(s))
				if k == "bond" {
					for _, name := range slices.Sorted(maps.Keys(s.BondPeers)) {
						fmt.Fprintf(a.out, "%s%s=%s\n", bondPrefix, name, s.BondPeers[name])
					}
				}
			}
			return nil
		},
	}
}

// changeSettings changes what KEY=VALUE words say, or some of it and says what makes no sense.
func changeSettings(s *node.Settings, list []string) error {
	for _, arg := range list {
		k, v, ok := strings.Cut(arg, "=")
		x, known := settings[k]
		if !known {
			x, known = bondWith(k)
		}
		if !ok || !known {
			return usagef("%s is no setting: give KEY=VALUE, where KEY is one of %s, %sNAME", quote(arg), strings.Join(settingNames(), ", "), bondPrefix)
		}
		if err := x.set(s, v); err != nil {
			return usageError{err}
		}
	}
	return nil
}

// explicit writes defaults out, and lists that are empty as such, for who reads a document.
func explicit(s *node.Settings) {
	if s.Endpoints == nil {
		s.Endpoints = []netip.AddrPort{}
	}
	if s.AdvertiseRoutes == nil {
		s.AdvertiseRoutes = []netip.Prefix{}
	}
	if s.Redundant == nil {
		s.Redundant = []engine.BondRule{}
	}
	if s.BondPeers == nil {
		s.BondPeers = map[string]string{}
	}
	s.Bond, s.Congestion = s.BondFor(""), s.CongestionOr()
}

func settingNames() []string {
	var names []string
	for k := range settings {
		names = append(names, k)
	}
	sort.Strings(names)
	return names
}
