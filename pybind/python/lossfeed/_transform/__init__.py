"""Image transforms: lossfeed's own, torchvision's, and the mixing of images in pairs."""
