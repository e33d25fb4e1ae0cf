"""JSON files of COCO's form: detection, keypoints, segmentation and captions."""
