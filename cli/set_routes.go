package cli

import (
	"fmt"
	"strings"

	"weft"
	"weft/node"
)

// Settings of routers and exits, as in docs/routers.md.
var routeSettings = map[string]setting{
	"advertise-routes": {
		help: "networks behind this machine, with commas between, that it offers to pass packets on to; empty for none",
		get: func(s node.Settings) string {
			var words []string
			for _, p := range s.AdvertiseRoutes {
				words = append(words, p.String())
			}
			return strings.Join(words, ",")
		},
		set: func(s *node.Settings, v string) error {
			s.AdvertiseRoutes = nil
			for _, x := range strings.Split(v, ",") {
				if x = strings.TrimSpace(x); x == "" {
					continue
				}
				p, err := weft.ParseRoute(x)
				if err != nil {
					return fmt.Errorf("advertise-routes: %w", err)
				}
				if weft.IsExit(p) {
					return fmt.Errorf("advertise-routes: %s is everything: say advertise-exit-node=on", p)
				}
				s.AdvertiseRoutes = append(s.AdvertiseRoutes, p)
			}
			s.AdvertiseRoutes = weft.SortRoutes(s.AdvertiseRoutes)
			return nil
		},
	},
	"advertise-exit-node": onOff("advertise-exit-node", "on: this machine offers to pass on what others send to the internet; off: it does not",
		func(s *node.Settings) *bool { return &s.AdvertiseExit }, false),
	"accept-routes": onOff("accept-routes", "on: networks behind other nodes are reached through them; off: they are not",
		func(s *node.Settings) *bool { return &s.NoAcceptRoutes }, true),
	"snat": onOff("snat", "on: behind this machine packets of the overlay appear to come from it; off: from who sent them, and the routers there must know the way back",
		func(s *node.Settings) *bool { return &s.NoSNAT }, true),
	"site-to-site": onOff("site-to-site", "on: machines in the networks that are advertised may begin connections into the overlay; off: they only answer",
		func(s *node.Settings) *bool { return &s.SiteToSite }, false),
	"exit-node": {
		help: "name of the node through which all that this machine sends to the internet goes, and nothing past it; off for none",
		get: func(s node.Settings) string {
			if s.ExitNode == "" {
				return "off"
			}
			return s.ExitNode
		},
		set: func(s *node.Settings, v string) error {
			name, ok := nodeName(v)
			if name == "off" || name == "" {
				s.ExitNode = ""
				return nil
			}
			if !ok {
				return fmt.Errorf("exit-node is the name of a node or off, not %s", quote(v))
			}
			s.ExitNode = name
			return nil
		},
	},
	"exit-lan": onOff("exit-lan", "on: with an exit node, the private networks that this machine is attached to stay reachable; off: nothing goes past the exit",
		func(s *node.Settings) *bool { return &s.ExitLAN }, false),
}

func init() {
	for k, x := range routeSettings {
		settings[k] = x
	}
}

// onOff is a setting that is on or off. Of one that is on by default its opposite is kept.
func onOff(key, help string, of func(*node.Settings) *bool, opposite bool) setting {
	return setting{
		help: help,
		get: func(s node.Settings) string {
			if *of(&s) != opposite {
				return "on"
			}
			return "off"
		},
		set: func(s *node.Settings, v string) error {
			if v != "on" && v != "off" {
				return fmt.Errorf("%s is on or off, not %s", key, quote(v))
			}
			*of(s) = (v == "on") != opposite
			return nil
		},
	}
}
