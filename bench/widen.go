package bench

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"weft/lab/netns"
)

// widen gives weft's interfaces an MTU for jumbo frames. It returns why not where this weft cannot.
func (s *site) widen(ctx context.Context) (why string, err error) {
	for _, n := range s.nodes {
		out, err := exec.CommandContext(ctx, s.Binary, "--socket", n.Socket, "set", "mtu="+strconv.Itoa(jumboWeftMTU)).CombinedOutput()
		const usage = 2 // exit code of a key that is not known
		if e, ok := err.(*exec.ExitError); ok && e.ExitCode() == usage {
			return "this weft has no setting mtu", nil
		}
		if err != nil {
			return "", fmt.Errorf("weft set mtu: %w: %s", err, strings.TrimSpace(string(out)))
		}
	}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i, h := range []*netns.Host{s.a, s.b} {
		if err := netns.WaitFor(wait, "the interface to have its MTU", func() error {
			st, err := s.nodes[i].Status(wait)
			if err != nil {
				return err
			}
			return h.Do(func() error {
				link, err := net.InterfaceByName(st.Self.Interface)
				if err == nil && link.MTU != jumboWeftMTU {
					err = fmt.Errorf("%s has %d", link.Name, link.MTU)
				}
				return err
			})
		}); err != nil {
			return "", err
		}
	}
	if err := s.bothDirect(wait); err != nil {
		return "", err
	}
	// Only a path that was found to carry them is used for long packets.
	return "", netns.WaitFor(wait, "jumbo packets to pass", func() error {
		_, err := s.a.Run(wait, "ping", "-q", "-c", "1", "-W", "1", "-M", "do", "-s", strconv.Itoa(jumboWeftMTU-28), s.peer.String())
		return err
	})
}
