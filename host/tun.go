package host

// A TUN interface as a data plane needs it: packets with a virtio-net header in front (10 bytes, the machine's byte
// order), super-packets in both directions (IFF_VNET_HDR, TUNSETOFFLOAD), one queue for each thread that reads
// (IFF_MULTI_QUEUE).
//
// The system calls never block and so bypass the scheduler's bookkeeping, which costs as much as a small packet. A
// reader that finds nothing shall look again a few times ([Patience]), since waking up costs more than a look, and then its thread
// waits for the descriptor itself ([TUNQueue.Await]; see gate). [TUNQueue.Wake] brings it back from there; while it is awake, waking costs two
// atomic operations.

// TUNOffloads is what a TUN interface does in super-packets.
type TUNOffloads struct {
	TCP bool // gives TSO for IPv4 and IPv6; it always takes them
	UDP bool // gives and takes USO (Linux 6.2)
}

// maxInterfaceName is the longest name of an interface in Linux: IFNAMSIZ less the final zero.
const maxInterfaceName = 15
