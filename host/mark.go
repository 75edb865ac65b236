package host

// Mark is the mark of the packets that weft itself sends on the underlay (SO_MARK), below MarkMask: they are what the
// overlay is made of, and never go into it. The highest byte is not what others take by custom (Tailscale 0xff0000, Kubernetes
// 0xc000, wg-quick its port); 0x57 is 'W'.
const (
	Mark     = 0x57000000
	MarkMask = 0xff000000

	// PortalMark is a bit of the mark of packets that a portal passes on, by rules of its own (docs/portal.md).
	PortalMark = 0x20000000
)
