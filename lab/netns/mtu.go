package netns

import (
	"fmt"
	"strconv"
)

// SetMTU makes the segment, and the legs of all hosts that are on it now, carry IP packets of this many bytes.
func (n *Network) SetMTU(bytes int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	mtu := " mtu " + strconv.Itoa(bytes)
	lines := []string{}
	for _, h := range n.hosts {
		if h.cable != nil {
			return fmt.Errorf("the link of %s is a cable of the laboratory's own, whose packets are of at most 1500 bytes", h.Name)
		}
		if h.isAlone() {
			return fmt.Errorf("the link of %s is a router of the laboratory's own, whose packets are of at most 1500 bytes", h.Name)
		}
		lines = append(lines, "link set "+h.peer+mtu)
		if err := batch(h.namespace, "link set "+h.link+mtu); err != nil {
			return err
		}
	}
	return batch(n.gateway, append(lines, "link set "+lanLink+mtu)...)
}
