package cli

import (
	"errors"

	"weft/node"
)

// tcpSetting is what TCP is used for between peers, as in docs/links.md.
var tcpSetting = setting{
	help: "TCP straight to peers - auto: where UDP does not get through; off: never, and none is taken; all, or IFACE,...: in place of UDP",
	get: func(s node.Settings) string {
		if s.TCP == "" {
			return "auto"
		}
		return s.TCP
	},
	set: func(s *node.Settings, v string) error {
		if v == "" {
			return errors.New("tcp is auto, off, all, or names of interfaces with commas between")
		}
		next := *s
		if next.TCP = v; v == "auto" {
			next.TCP = ""
		}
		if err := next.CheckTCP(); err != nil {
			return err
		}
		s.TCP = next.TCP
		return nil
	},
}
