package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"weft"
	"weft/engine"
	"weft/node"
)

// bondPrefix begins the keys of settings for one peer: bond.NAME.
const bondPrefix = "bond."

// Settings of bonding, as in docs/bonding.md.
var (
	bondSetting = setting{
		help: "several links at once: aggregate adds them up, redundant sends each packet by two, off uses the best alone",
		get:  func(s node.Settings) string { return s.BondFor("") },
		set:  func(s *node.Settings, v string) error { return choose(&s.Bond, "bond", v, node.BondModes) },
	}
	congestionSetting = setting{
		help: "how each link's speed is found out: bbr, cubic or reno",
		get:  func(s node.Settings) string { return s.CongestionOr() },
		set: func(s *node.Settings, v string) error {
			return choose(&s.Congestion, "congestion", v, node.BondControls)
		},
	}
	redundantSetting = setting{
		help: "what goes by two links where bond is aggregate, too, with commas between: dscp:ef, udp:5004, tcp:22; empty for nothing",
		get: func(s node.Settings) string {
			list := make([]string, len(s.Redundant))
			for i, r := range s.Redundant {
				list[i] = r.String()
			}
			return strings.Join(list, ",")
		},
		set: setRedundant,
	}
)

// choose takes one of several words; the first is the default, which is kept as nothing.
func choose(into *string, key, v string, of []string) error {
	if !slices.Contains(of, v) {
		last := len(of) - 1
		return fmt.Errorf("%s is %s or %s, not %s", key, strings.Join(of[:last], ", "), of[last], quote(v))
	}
	if *into = v; v == of[0] {
		*into = ""
	}
	return nil
}

func setRedundant(s *node.Settings, v string) error {
	s.Redundant = nil
	for _, x := range strings.Split(v, ",") {
		if x == "" {
			continue
		}
		r, err := engine.ParseBondRule(x)
		if err != nil {
			return fmt.Errorf("redundant: %w", err)
		}
		if !slices.Contains(s.Redundant, r) {
			s.Redundant = append(s.Redundant, r)
		}
	}
	if n := len(s.Redundant); n > node.MaxBondRules {
		return fmt.Errorf("redundant: %d rules are too many: give at most %d", n, node.MaxBondRules)
	}
	return nil
}

// nodeName is a node's name as somebody writes it, with a domain or without. The daemon knows the network's own and takes it off.
func nodeName(s string) (name string, ok bool) {
	name = weft.ShortName(strings.TrimSpace(s), weft.Domain)
	label, _, _ := strings.Cut(name, ".")
	return name, label != "" && weft.CleanName(label) == label
}

// bondWith is the setting bond.NAME, of one peer. Empty is what bond says.
func bondWith(key string) (setting, bool) {
	name, ok := strings.CutPrefix(key, bondPrefix)
	name, valid := nodeName(name)
	if !ok || !valid {
		return setting{}, false
	}
	return setting{
		get: func(s node.Settings) string { return s.BondFor(name) },
		set: func(s *node.Settings, v string) error {
			s.BondPeers = maps.Clone(s.BondPeers)
			if v == "" {
				delete(s.BondPeers, name)
				return nil
			}
			var mode string
			if err := choose(&mode, key, v, node.BondModes); err != nil {
				return fmt.Errorf("%w; empty for what bond says", err)
			}
			if s.BondPeers == nil {
				s.BondPeers = map[string]string{}
			}
			s.BondPeers[name] = v
			return nil
		},
	}, true
}
